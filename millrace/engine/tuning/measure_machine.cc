#include "millrace/engine/tuning/measure_machine.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "millrace/engine/ops/product.h"

namespace millrace::engine {
namespace {

class Timer {
 public:
  explicit Timer(Clock& clock) : clock_(clock) {}
  template <class Work>
  void Time(Work&& work) {
    const TimePoint start = clock_.Now();
    work();
    times_.push_back(std::chrono::duration<double>(clock_.Now() - start).count());
  }
  double Median() {
    const auto middle = times_.begin() + static_cast<std::ptrdiff_t>(times_.size() / 2);
    std::ranges::nth_element(times_, middle);
    return *middle;
  }

 private:
  Clock& clock_;
  std::vector<double> times_;
};

}  // namespace

MachineRates MeasureMachine(Clock& clock, const MachineSizes& sizes) {
  const at::NoGradGuard no_gradients;
  const std::int64_t side = sizes.side;
  const at::Tensor a = at::randn({side, side}), b = at::randn({side, side}), c = at::zeros({side, side});
  const at::Tensor a16 = a.to(at::kBFloat16), b16 = b.to(at::kBFloat16);
  const at::Tensor p = at::ones({sizes.elements}), q = at::ones({sizes.elements});
  at::Tensor sum = at::zeros({sizes.elements});
  ops::AddProduct(c, a, b);  // compiles, and warms caches
  ops::AddProduct(c, a16, b16);
  Timer f32(clock), bf16(clock), sums(clock);
  for (int round = 0; round < sizes.rounds; ++round) {
    f32.Time([&] { ops::AddProduct(c, a, b); });
    bf16.Time([&] { ops::AddProduct(c, a16, b16); });
    sums.Time([&] { at::add_out(sum, p, q); });
  }
  const double operations = 2 * static_cast<double>(side * side * side);
  return {.f32 = operations / f32.Median(),
          .bf16 = operations / bf16.Median(),
          .memory_bandwidth = 3 * static_cast<double>(p.nbytes()) / sums.Median()};
}

}  // namespace millrace::engine
