// The device of a process, and what a precision asks of it.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/base/result.h"

namespace millrace::engine {

/// The types in which numbers are kept and multiplied.
struct Precision {
  at::ScalarType type = at::kFloat;  ///< of weights and activations
  bool tf32 = false;                 ///< products of float32 numbers may round their inputs to TF32
  bool fp8 = false;                  ///< linear layers multiply in FP8: ops::StepKernels
  bool operator==(const Precision&) const = default;
};

/// Returns the precision of a name in job files: "f32", "tf32", "bf16", "fp16", "fp8".
/// Errors: kInvalidArgument on another one.
Result<Precision> ParsePrecision(std::string_view name);
std::string_view PrecisionName(Precision precision);
/// Checks that the device has this precision: TF32 and float16 need a GPU, FP8 one that multiplies in it.
/// Errors: kUnsupported, with `key`, the name of what asked for it.
Status CheckPrecision(std::string_view key, Precision precision, at::Device device);

/// Checks that the device multiplies with blocks that have a scale each (ops::Fp8Scaling::kBlock): Hopper does, with
/// cuBLAS 12.9. Errors: kUnsupported, with `key`.
Status CheckBlockScaling(std::string_view key, at::Device device);

/// Returns the device that `request` names: "cpu"; "cuda", a GPU; or "auto", a GPU if there is one and this program was
/// built for GPUs, else the CPU. The rank `local_rank` of a machine gets GPU number local_rank modulo their number.
/// Makes the GPU the current device of this thread, and lets products round to TF32 only if `precision` does.
/// Errors: kInvalidArgument on another word; kUnsupported if this program was built without CUDA; kUnavailable if there
/// is no GPU. Both say what to do.
Result<at::Device> ChooseDevice(std::string_view request, int local_rank, Precision precision = {});

/// Returns the name that the driver gives a GPU: "NVIDIA H100 80GB HBM3". Empty for the CPU.
std::string DeviceName(at::Device device);
/// Returns the address of a GPU on the PCI bus: "0000:3B:00.0". Empty for the CPU.
std::string DevicePciBusId(at::Device device);
/// Returns the memory of a GPU that is in use, by all processes, in bytes; 0 for the CPU.
std::uint64_t DeviceMemoryInUse(at::Device device);
/// Returns how many GPUs this process sees; 0 if it was built without CUDA.
int GpuCount();

}  // namespace millrace::engine
