// Macros that mark a function for the host and for GPUs.
#pragma once

#ifdef __CUDACC__
#define MR_HOST_DEVICE __host__ __device__
#else
#define MR_HOST_DEVICE
#endif
