// Connects the ranks of a job so that they exchange the tensors of their GPUs.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/collectives/nccl/side_stream.h"
#include "millrace/engine/parallel/collective.h"

namespace millrace::engine {

struct GpuGroup {
  std::unique_ptr<Collective> group;
  std::string through_host;  ///< why tensors go through the memory of the host; empty: they go over NCCL
};

/// Makes `inner`, the group of all ranks, take the tensors of `device`, a GPU. They go over NCCL if every rank has a
/// GPU of its own and finds the library, otherwise through the memory of the host. All ranks call it, and choose the
/// same. `shares_gpu`: another rank uses this one's GPU.
Result<GpuGroup> ConnectGpus(std::unique_ptr<Collective> inner, at::Device device, bool shares_gpu, Duration timeout);

/// Returns the streams of a GPU. Throws c10::Error if this program was built without CUDA.
std::shared_ptr<collectives::StreamDevice> MakeStreamDevice(at::Device device);

}  // namespace millrace::engine
