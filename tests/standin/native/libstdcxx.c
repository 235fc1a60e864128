/* A stand-in for GCC 14's libstdc++.so.6; C names, since only the version definitions matter. */
#include "glibc.h"
STANDIN(__cxa_begin_catch)
STANDIN(__cxa_guard_acquire)
STANDIN(__cxa_throw)
STANDIN(_ZSt9terminatev)
