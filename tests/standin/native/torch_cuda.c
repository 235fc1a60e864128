/* A stand-in for libtorch_cuda.so: it imports what the real one imports of NCCL, and nothing is ever called. */
#define NCCL(name) int name(void);
#include "nccl_torch.h"
#undef NCCL

int pthread_create(void);

typedef int function(void);

#define NCCL(name) name,
__attribute__((visibility("default"))) function *const standin_nccl[] = {
#include "nccl_torch.h"
};

__attribute__((visibility("default"))) int standin_start(void) { return pthread_create(); }
