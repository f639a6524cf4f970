/* What Triton asks of CUDA's driver where there is none: a launch goes to `launched`. */

#include "cuda.h"

void (*launched)(unsigned programs, int together, void **parameters);

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction kernel, void **parameters,
                          void **extra) {
  int together = 0;
  for (unsigned i = 0; i < config->numAttrs; i++)
    together |= config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  launched(config->gridDimX * config->gridDimY * config->gridDimZ, together, parameters);
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *found, CUpointer_attribute which, CUdeviceptr address) {
  *(CUdeviceptr *)found = address;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *found, CUdevice_attribute which, CUdevice device) {
  *found = 1 << 18; /* bytes of shared memory */
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *found, CUfunction_attribute which, CUfunction kernel) {
  *found = which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
  *context = (CUcontext)1;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = "an error";
  return CUDA_SUCCESS;
}

/* These say that all went well. */
CUresult cuModuleLoadData(CUmodule *module, const void *image) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *kernel, CUmodule module, const char *x) { return CUDA_SUCCESS; }
CUresult cuFuncSetAttribute(CUfunction kernel, CUfunction_attribute which, int x) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction kernel, CUfunc_cache config) { return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int index) { return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { return CUDA_SUCCESS; }
CUresult cuCtxGetLimit(size_t *found, CUlimit which) { return CUDA_SUCCESS; }
CUresult cuCtxSetLimit(CUlimit which, size_t x) { return CUDA_SUCCESS; }
