/* A stand-in for glibc 2.39's libdl.so.2, which is empty but for old names since 2.34. */
#include "glibc.h"
STANDIN(dlclose)
STANDIN(dlerror)
STANDIN(dlopen)
STANDIN(dlsym)
