/* A stand-in for GCC 14's libgcc_s.so.1. */
#include "glibc.h"
STANDIN(_Unwind_Backtrace)
STANDIN(_Unwind_GetIP)
STANDIN(_Unwind_Resume)
