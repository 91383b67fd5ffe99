#include "millrace/engine/tuning/measure_machine.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "millrace/collectives/connect.h"
#include "millrace/engine/errors.h"
#include "millrace/engine/ops/product.h"
#include "millrace/engine/parallel/collective.h"

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

/// A linear layer, with what goes through it.
struct TrainedLayer {
  at::Tensor x, weight, dout, gradient;
  explicit TrainedLayer(const MachineSizes& sizes, at::ScalarType type)
      : x(at::randn({sizes.tokens, sizes.side}).to(type)),
        weight(at::randn({sizes.side, sizes.side}).to(type)),
        dout(at::randn({sizes.tokens, sizes.side}).to(type)),
        gradient(at::zeros({sizes.side, sizes.side})) {}
  void Train() const {
    ops::Product(x, weight.t());
    ops::Product(dout, weight);
    ops::AddProduct(gradient, dout.t(), x);
  }
};

/// Two ranks, each a thread, that divide an array.
struct DividedArray {
  std::vector<std::unique_ptr<Collective>> ranks = collectives::ConnectThreads(2);
  at::Tensor parts;                ///< of both ranks, [2, n]
  std::vector<at::Tensor> copies;  ///< the whole array of each rank, [2n]

  void Exchange() const {
    Both([&](int rank) { return ranks[rank]->StartAllGather(copies[rank], parts[rank]); });
    Both([&](int rank) { return ranks[rank]->StartReduceScatter(parts[rank], copies[rank], Reduction::kMean); });
  }
  /// Returns what each rank sends in an Exchange(): its part in the gather, and as much in the reduce-scatter.
  std::size_t sent_bytes() const { return parts.nbytes(); }

 private:
  template <class Start>
  static void Both(Start start) {
    const Collective::Operation first = start(0), second = start(1);
    ThrowIfFailed(first->Wait());
    ThrowIfFailed(second->Wait());
  }
};

}  // namespace

MachineRates MeasureMachine(Clock& clock, const MachineSizes& sizes) {
  const at::NoGradGuard no_gradients;
  const TrainedLayer f32_layer(sizes, at::kFloat), bf16_layer(sizes, at::kBFloat16);
  const at::Tensor p = at::ones({sizes.elements}), q = at::ones({sizes.elements});
  at::Tensor sum = at::zeros({sizes.elements});
  const DividedArray divided{.parts = at::ones({2, sizes.elements / 2}), .copies = {p.clone(), q.clone()}};
  f32_layer.Train();  // compiles, and warms caches
  bf16_layer.Train();
  Timer f32(clock), bf16(clock), sums(clock), exchanges(clock);
  for (int round = 0; round < sizes.rounds; ++round) {
    f32.Time([&] { f32_layer.Train(); });
    bf16.Time([&] { bf16_layer.Train(); });
    sums.Time([&] { at::add_out(sum, p, q); });
    exchanges.Time([&] { divided.Exchange(); });
  }
  const double operations = 3 * 2 * static_cast<double>(sizes.tokens * sizes.side * sizes.side);
  return {.f32 = operations / f32.Median(),
          .bf16 = operations / bf16.Median(),
          .memory_bandwidth = 3 * static_cast<double>(p.nbytes()) / sums.Median(),
          .link_bandwidth = static_cast<double>(divided.sent_bytes()) / exchanges.Median()};
}

}  // namespace millrace::engine
