#include "millrace/engine/parallel/testing/faulty.h"

#include <utility>

#include "millrace/base/hash/random.h"

namespace millrace::engine {
namespace {

/// An operation of another group whose success is replaced by `status`.
class ReplacedOperation final : public Collective::Pending {
 public:
  ReplacedOperation(Collective::Operation inner, Status status)
      : inner_(std::move(inner)), status_(std::move(status)) {}
  Status Wait() override {
    if (inner_) (void)inner_->Wait();
    return status_;
  }

 private:
  const Collective::Operation inner_;  ///< null: it was never started
  const Status status_;
};

class FaultyCollective final : public Collective {
 public:
  FaultyCollective(std::unique_ptr<Collective> inner, FaultPlan plan, Clock& clock)
      : rank_(inner->rank()),
        size_(inner->size()),
        plan_(plan),
        clock_(clock),
        random_(Mix64(plan.seed) + static_cast<std::uint64_t>(rank_)),
        inner_(std::move(inner)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Operation StartAllReduce(at::Tensor tensor, Reduction reduction) override {
    return Start([&] { return inner_->StartAllReduce(std::move(tensor), reduction); });
  }
  Operation StartAllGather(at::Tensor all, at::Tensor mine) override {
    return Start([&] { return inner_->StartAllGather(std::move(all), std::move(mine)); });
  }
  Operation StartReduceScatter(at::Tensor mine, at::Tensor all, Reduction reduction) override {
    return Start([&] { return inner_->StartReduceScatter(std::move(mine), std::move(all), reduction); });
  }
  Operation StartBroadcast(at::Tensor tensor, int root) override {
    return Start([&] { return inner_->StartBroadcast(std::move(tensor), root); });
  }
  Operation StartSend(at::Tensor tensor, int to) override {
    return Start([&] { return inner_->StartSend(std::move(tensor), to); });
  }
  Operation StartReceive(at::Tensor tensor, int from) override {
    return Start([&] { return inner_->StartReceive(std::move(tensor), from); });
  }

  void Abort(const Error& cause) override {
    if (inner_) inner_->Abort(cause);
  }

  Result<std::unique_ptr<Collective>> Split(std::string name, std::span<const int> members) override {
    if (!inner_) return Fail(Gone());
    return MakeFaulty(MR_TRY(inner_->Split(std::move(name), members)), plan_, clock_);
  }

 private:
  template <class StartInner>
  Operation Start(StartInner start) {
    if (plan_.most_delay > Duration::zero()) {
      const auto most = static_cast<std::uint64_t>(plan_.most_delay.count());
      clock_.SleepFor(Duration(static_cast<std::int64_t>(random_.Below(most))));
    }
    const std::uint64_t number = operations_++;
    if (number == plan_.lost_at) inner_.reset();
    if (!inner_) return std::make_unique<ReplacedOperation>(nullptr, Fail(Gone()));
    if (number != plan_.fails_at) return start();
    Operation operation = start();
    (void)operation->Wait();
    inner_.reset();
    return std::make_unique<ReplacedOperation>(
        std::move(operation), Fail(Code::kInternal, "injected: operation {} of rank {} fails", number, rank_));
  }
  Error Gone() const { return {Code::kUnavailable, fmt::format("injected: rank {} has left the group", rank_)}; }

  const int rank_, size_;
  const FaultPlan plan_;
  Clock& clock_;
  Random random_;
  std::uint64_t operations_ = 0;
  std::unique_ptr<Collective> inner_;  ///< null: this rank has left
};

}  // namespace

std::unique_ptr<Collective> MakeFaulty(std::unique_ptr<Collective> inner, FaultPlan plan, Clock& clock) {
  return std::make_unique<FaultyCollective>(std::move(inner), plan, clock);
}

}  // namespace millrace::engine
