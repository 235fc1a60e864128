/* A stand-in for glibc 2.39's libpthread.so.0, which is empty but for old names since 2.34. */
#include "glibc.h"
STANDIN(__pthread_key_create)
STANDIN(pthread_create)
STANDIN(pthread_getattr_default_np)
STANDIN(pthread_join)
