/* The whole of a program that ends well: `_start` without a C library. */
void _start(void) {
  register long status __asm__("x0") = 0;
  register long call __asm__("x8") = 94; /* exit_group */
  __asm__ volatile("svc 0" : : "r"(status), "r"(call));
  __builtin_unreachable();
}
