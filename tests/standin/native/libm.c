/* A stand-in for glibc 2.39's libm.so.6. */
#include "glibc.h"
STANDIN(ceil)
STANDIN(exp)
STANDIN(log)
STANDIN(log2)
STANDIN(pow)
