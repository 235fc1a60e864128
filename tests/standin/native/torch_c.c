/* A stand-in for torch._C: the module does nothing but need libtorch_python.so. */
int abort(void);
int standin_init_module(void);

__attribute__((visibility("default"))) void *PyInit__C(void) {
  if (standin_init_module()) abort();
  return 0;
}
