/* A stand-in for glibc 2.39's librt.so.1, which is empty but for old names since 2.34. */
#include "glibc.h"
STANDIN(shm_open)
STANDIN(shm_unlink)
