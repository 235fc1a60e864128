/* A stand-in for glibc 2.39's ld-linux-aarch64.so.1; as a program loader it is of no use. */
#include "glibc.h"
STANDIN(__stack_chk_guard)
STANDIN(__tls_get_addr)
STANDIN(_dl_find_object)
