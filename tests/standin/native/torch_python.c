/* A stand-in for libtorch_python.so, which imports NCCL besides what it gets from libtorch_cuda.so. */
int ncclDevCommDestroy(void);
int standin_start(void);

__attribute__((visibility("default"))) int standin_init_module(void) {
  return standin_start() ? ncclDevCommDestroy() : 0;
}
