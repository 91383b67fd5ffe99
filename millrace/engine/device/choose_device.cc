#include "millrace/engine/device/choose_device.h"

#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#ifdef MILLRACE_CUDA
#include <cuda_runtime_api.h>
#endif

#include <algorithm>
#include <array>

#include "millrace/engine/device/built_with_cuda.h"

namespace millrace::engine {
namespace {

struct PrecisionEntry {
  std::string_view name;
  Precision precision;
};
constexpr std::array<PrecisionEntry, 5> kPrecisions = {{{"f32", {at::kFloat, false}},
                                                        {"tf32", {at::kFloat, true}},
                                                        {"bf16", {at::kBFloat16, false}},
                                                        {"fp16", {at::kHalf, false}},
                                                        {"fp8", {at::kBFloat16, false, true}}}};

Status CheckFp8([[maybe_unused]] std::string_view key, [[maybe_unused]] at::Device device) {
#ifdef MILLRACE_CUDA
  constexpr int kFirstWithFp8 = 89;  // Ada; then Hopper, 90
  cudaDeviceProp gpu{};
  if (cudaGetDeviceProperties(&gpu, device.index()) == cudaSuccess && 10 * gpu.major + gpu.minor < kFirstWithFp8) {
    return Fail(Code::kUnsupported,
                "{}: fp8 needs a GPU of compute capability 8.9 or above, and this {} has {}.{}; take bf16", key,
                std::string_view(gpu.name), gpu.major, gpu.minor);
  }
#endif
  return {};
}

}  // namespace

int GpuCount() { return ops::kBuiltWithCuda ? c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount() : 0; }

std::uint64_t DeviceMemoryInUse([[maybe_unused]] at::Device device) {
#ifdef MILLRACE_CUDA
  if (!device.is_cuda()) return 0;
  const c10::DeviceGuard on_device(device);
  std::size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) == cudaSuccess) return total - free;
#endif
  return 0;
}

std::string DeviceName([[maybe_unused]] at::Device device) {
#ifdef MILLRACE_CUDA
  cudaDeviceProp properties{};
  if (device.is_cuda() && cudaGetDeviceProperties(&properties, device.index()) == cudaSuccess) return properties.name;
#endif
  return "";
}

std::string DevicePciBusId([[maybe_unused]] at::Device device) {
#ifdef MILLRACE_CUDA
  char address[32] = "";
  if (device.is_cuda() && cudaDeviceGetPCIBusId(address, sizeof address, device.index()) == cudaSuccess) return address;
#endif
  return "";
}

Result<Precision> ParsePrecision(std::string_view name) {
  const auto* const found = std::ranges::find(kPrecisions, name, &PrecisionEntry::name);
  if (found != kPrecisions.end()) return found->precision;
  return Fail(Code::kInvalidArgument, "the precision {} is not one of f32, tf32, bf16, fp16 and fp8", name);
}

std::string_view PrecisionName(Precision precision) {
  const auto* const found = std::ranges::find(kPrecisions, precision, &PrecisionEntry::precision);
  return found != kPrecisions.end() ? found->name : "?";
}

Status CheckPrecision(std::string_view key, Precision precision, at::Device device) {
  if (!device.is_cpu()) return precision.fp8 ? CheckFp8(key, device) : Status();
  if (!precision.tf32 && !precision.fp8 && precision.type != at::kHalf) return {};
  return Fail(Code::kUnsupported, "{}: {} needs an NVIDIA GPU, and this process computes on the CPU; take {}", key,
              PrecisionName(precision), precision.tf32 ? "f32" : "bf16 or f32");
}

Status CheckBlockScaling([[maybe_unused]] std::string_view key, [[maybe_unused]] at::Device device) {
#ifdef MILLRACE_CUDA
  constexpr int kHopper = 9;
  cudaDeviceProp gpu{};
  if (cudaGetDeviceProperties(&gpu, device.index()) == cudaSuccess && gpu.major != kHopper) {
    return Fail(
        Code::kUnsupported,
        "{}: block scaling needs a GPU of compute capability 9.0, and this {} has {}.{}; take current or delayed", key,
        std::string_view(gpu.name), gpu.major, gpu.minor);
  }
  constexpr int kFirstCuda = 12090;  // its cuBLAS is the first with such products
  int version = 0;
  if (cudaRuntimeGetVersion(&version) == cudaSuccess && version < kFirstCuda) {
    return Fail(
        Code::kUnsupported,
        "{}: block scaling needs the cuBLAS of CUDA 12.9 or later, and this PyTorch has CUDA {}.{}; take current "
        "or delayed",
        key, version / 1000, version % 1000 / 10);
  }
#endif
  return {};
}

Result<at::Device> ChooseDevice(std::string_view request, int local_rank, Precision precision) {
  if (request != "auto" && request != "cpu" && request != "cuda") {
    return Fail(Code::kInvalidArgument, "the device {} is not one of auto, cpu and cuda", request);
  }
  if (request == "cuda" && !ops::kBuiltWithCuda) {
    return Fail(Code::kUnsupported,
                "device cuda: this program was built without CUDA. Build it with `make gpu`, or take auto or cpu");
  }
  const int gpus = request == "cpu" ? 0 : GpuCount();
  if (gpus == 0) {
    if (request != "cuda") return at::Device(at::kCPU);
    return Fail(Code::kUnavailable,
                "device cuda: this process sees no NVIDIA GPU. Look at nvidia-smi and CUDA_VISIBLE_DEVICES, or take "
                "auto or cpu");
  }
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(local_rank % gpus));
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device);
  at::globalContext().setAllowTF32CuBLAS(precision.tf32);
  at::globalContext().setAllowTF32CuDNN(precision.tf32);
  return device;
}

}  // namespace millrace::engine
