#include <gtest/gtest.h>

#include "millrace/engine/device/choose_device.h"
#include "millrace/engine/device/device_reader.h"
#include "millrace/engine/device/host_memory.h"
#include "millrace/engine/errors.h"

namespace millrace::engine {
namespace {

TEST(ChooseDevice, TakesTheCpuWhereItIsAskedFor) {
  for (const int rank : {0, 3}) EXPECT_EQ(ChooseDevice("cpu", rank).value(), at::Device(at::kCPU));
}

TEST(ChooseDevice, SaysHowToGetAGpu) {
  const auto wrong = ChooseDevice("gpu", 0);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code(), Code::kInvalidArgument);
  const auto any = ChooseDevice("auto", 0), gpu = ChooseDevice("cuda", 0);
  ASSERT_TRUE(any);
  if (!any->is_cpu()) {  // there is one
    EXPECT_EQ(gpu.value(), *any);
    return;
  }
  ASSERT_FALSE(gpu);
#ifdef MILLRACE_CUDA
  EXPECT_NE(gpu.error().message().find("nvidia-smi"), std::string::npos) << gpu.error().ToString();
#else
  EXPECT_NE(gpu.error().message().find("make gpu"), std::string::npos) << gpu.error().ToString();
#endif
}

TEST(Precision, HasANameEach) {
  for (const std::string_view name : {"f32", "tf32", "bf16", "fp16", "fp8"}) {
    EXPECT_EQ(PrecisionName(ParsePrecision(name).value()), name);
  }
  EXPECT_FALSE(ParsePrecision("fp4"));
  EXPECT_TRUE(CheckPrecision("train.precision", {at::kBFloat16}, at::kCPU));
  for (const std::string_view name : {"tf32", "fp16", "fp8"}) {
    const Status status = CheckPrecision("train.precision", ParsePrecision(name).value(), at::kCPU);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), Code::kUnsupported);
    EXPECT_NE(status.error().message().find(name), std::string::npos) << status.error().ToString();
  }
}

TEST(HostMemory, TheCpuNeedsNoCopy) {
  const at::Tensor tensor = at::arange(5);
  EXPECT_TRUE(ToDevice(tensor, at::kCPU).is_same(tensor));
  EXPECT_FALSE(ToDevice({}, at::kCPU).defined());
  EXPECT_EQ(EmptyOnHost({2, 3}, at::kInt, at::kCPU).sizes(), (std::vector<std::int64_t>{2, 3}));
}

TEST(DeviceReader, CopiesBytes) {
  DeviceReader reader(at::kCPU);
  const std::string from = "some bytes";
  std::string to(from.size(), '.');
  reader.MarkWritten();
  ASSERT_TRUE(reader.Read({reinterpret_cast<std::byte*>(to.data()), to.size()}, AsBytes(from)));
  EXPECT_EQ(to, from);
}

TEST(CatchTorch, SaysHowMuchMemoryOfTheGpuWasAskedFor) {
  const auto failed = CatchTorch("training step", []() -> int {
    TORCH_CHECK_WITH(OutOfMemoryError, false,
                     "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which "
                     "1.25 GiB is free. Process 1 has 3.00 GiB memory in use.");
    return 0;
  });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), Code::kResourceExhausted);
  EXPECT_EQ(failed.error().message(),
            "training step: out of GPU memory: 2.50 GiB were asked for, 1.25 GiB of 79.11 GiB are free");
  const auto unknown =
      CatchTorch("training step", [] { TORCH_CHECK_WITH(OutOfMemoryError, false, "no memory\nat a place"); });
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().message(), "training step: no memory");
}

}  // namespace
}  // namespace millrace::engine
