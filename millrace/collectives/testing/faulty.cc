#include "millrace/collectives/testing/faulty.h"

#include <atomic>
#include <limits>
#include <semaphore>
#include <utility>

#include "millrace/base/hash/random.h"
#include "millrace/base/threads/sync.h"

namespace millrace::collectives {
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

/// The faults of a rank, for all its groups. Thread-safe.
class RankFaults {
 public:
  enum class Fault { kNone, kFails, kGone };

  RankFaults(FaultPlan plan, int rank, Clock& clock)
      : rank_(rank),
        plan_(std::move(plan)),
        clock_(clock),
        random_(Mix64(plan_.seed) + static_cast<std::uint64_t>(rank)) {}

  /// Counts an operation, and delays it. Returns what happens to it, and its number.
  std::pair<Fault, std::uint64_t> Begin() {
    constexpr auto kNotCounted = std::numeric_limits<std::uint64_t>::max();
    std::uint64_t number = kNotCounted;
    Duration delay{};
    Fault fault = Fault::kNone;
    {
      MutexLock lock(mutex_);
      if (!plan_.counted_from || plan_.counted_from->stop_requested()) number = operations_++;
      if (plan_.most_delay > Duration::zero()) {
        delay =
            Duration(static_cast<std::int64_t>(random_.Below(static_cast<std::uint64_t>(plan_.most_delay.count()))));
      }
      is_hung_ = is_hung_ || number == plan_.hangs_at;
      if (gone_ || is_hung_ || number == plan_.lost_at) fault = Fault::kGone;
      if (!gone_ && number == plan_.fails_at) fault = Fault::kFails;
      gone_ = gone_ || fault != Fault::kNone;
    }
    if (delay > Duration::zero()) clock_.SleepFor(delay);
    if (is_hung_) AwaitRelease();
    return {fault, number};
  }

  int rank() const { return rank_; }  ///< in the wrapped group

 private:
  void AwaitRelease() {
    std::binary_semaphore released(0);
    const std::stop_callback release(plan_.released, [&] { released.release(); });
    released.acquire();
  }

  const int rank_;
  const FaultPlan plan_;
  Clock& clock_;
  Mutex mutex_;
  Random random_ MR_GUARDED_BY(mutex_);
  std::uint64_t operations_ MR_GUARDED_BY(mutex_) = 0;
  bool gone_ MR_GUARDED_BY(mutex_) = false;
  std::atomic<bool> is_hung_ = false;
};

class FaultyCollective final : public Collective {
 public:
  FaultyCollective(std::unique_ptr<Collective> inner, std::shared_ptr<RankFaults> faults)
      : rank_(inner->rank()), size_(inner->size()), faults_(std::move(faults)), inner_(std::move(inner)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Operation StartAllReduce(Elements elements, Reduction reduction) override {
    return Start([&] { return inner_->StartAllReduce(std::move(elements), reduction); });
  }
  Operation StartAllGather(Elements all, Elements mine) override {
    return Start([&] { return inner_->StartAllGather(std::move(all), std::move(mine)); });
  }
  Operation StartReduceScatter(Elements mine, Elements all, Reduction reduction) override {
    return Start([&] { return inner_->StartReduceScatter(std::move(mine), std::move(all), reduction); });
  }
  Operation StartBroadcast(Elements elements, int root) override {
    return Start([&] { return inner_->StartBroadcast(std::move(elements), root); });
  }
  Operation StartSend(Elements elements, int to) override {
    return Start([&] { return inner_->StartSend(std::move(elements), to); });
  }
  Operation StartReceive(Elements elements, int from) override {
    return Start([&] { return inner_->StartReceive(std::move(elements), from); });
  }

  void Abort(const Error& cause) override {
    if (inner_) inner_->Abort(cause);
  }

  Result<std::unique_ptr<Collective>> Split(std::string name, std::span<const int> members) override {
    if (!inner_) return Fail(Gone());
    return std::make_unique<FaultyCollective>(MR_TRY(inner_->Split(std::move(name), members)), faults_);
  }

 private:
  template <class StartInner>
  Operation Start(StartInner start) {
    const auto [fault, number] = faults_->Begin();
    if (fault == RankFaults::Fault::kGone) inner_.reset();
    if (!inner_) return std::make_unique<ReplacedOperation>(nullptr, Fail(Gone()));
    if (fault == RankFaults::Fault::kNone) return start();
    Operation operation = start();
    (void)operation->Wait();
    inner_.reset();
    return std::make_unique<ReplacedOperation>(
        std::move(operation),
        Fail(Code::kInternal, "injected: operation {} of rank {} fails", number, faults_->rank()));
  }
  Error Gone() const {
    return {Code::kUnavailable, fmt::format("injected: rank {} has left the group", faults_->rank())};
  }

  const int rank_, size_;
  const std::shared_ptr<RankFaults> faults_;
  std::unique_ptr<Collective> inner_;  ///< null: this rank has left
};

}  // namespace

std::unique_ptr<Collective> MakeFaulty(std::unique_ptr<Collective> inner, FaultPlan plan, Clock& clock) {
  auto faults = std::make_shared<RankFaults>(std::move(plan), inner->rank(), clock);
  return std::make_unique<FaultyCollective>(std::move(inner), std::move(faults));
}

}  // namespace millrace::collectives
