/* A stand-in for DeepEP's library: a consumer of NCCL that finds it by RUNPATH. */
int ncclCommCount(void);
int ncclGetErrorString(void);
int ncclGetUniqueId(void);

__attribute__((visibility("default"))) int standin_deep_ep(void) {
  return ncclGetUniqueId() ? ncclGetErrorString() : ncclCommCount();
}
