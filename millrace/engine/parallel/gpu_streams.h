// Makes the streams of a GPU, for exchanges that run beside the computation.
#pragma once

#include <ATen/ATen.h>

#include <memory>

#include "millrace/collectives/nccl/side_stream.h"

namespace millrace::engine {

/// Returns the streams of a GPU. Throws c10::Error if this program was built without CUDA.
std::shared_ptr<collectives::StreamDevice> MakeStreamDevice(at::Device device);

}  // namespace millrace::engine
