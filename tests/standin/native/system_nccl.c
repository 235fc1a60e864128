/* A stand-in for the system's NCCL 2.28.3: it says its version and refuses all work. */
#define NCCL(name) int name(void) { return 3; } /* ncclInternalError */
#include "nccl_2_28_3.h"

const char standin_banner[] = "NCCL version 2.28.3+cuda13.0";

int ncclGetVersion(int *version) {
  if (!version) return 4; /* ncclInvalidArgument */
  *version = 22803;
  return 0;
}

int pncclGetVersion(int *version) { return ncclGetVersion(version); }

const char *ncclGetErrorString(int result) { return result == 0 ? "no error" : "this NCCL is a stand-in"; }

const char *pncclGetErrorString(int result) { return ncclGetErrorString(result); }
