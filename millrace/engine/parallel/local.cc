// Collective operations between threads of one process.
#include <map>

#include "millrace/base/threads/sync.h"
#include "millrace/engine/parallel/collective.h"

namespace millrace::engine {
namespace {

/// A table on which ranks put tensors for each other. In each round, all ranks put one tensor, then all take all.
class Table {
 public:
  Table(int size, Duration timeout) : timeout_(timeout), slots_(size), mail_(size * size) {}

  /// Puts `mine` on the table. Blocks until all ranks have done so and returns all tensors in rank order.
  Result<std::vector<at::Tensor>> Exchange(int rank, const at::Tensor& mine) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    MR_TRY(Await([&]() MR_NO_THREAD_SAFETY_ANALYSIS { return !taking_; }));  // the round before has ended
    slots_[rank] = mine.clone();
    const std::uint64_t round = round_;
    if (++arrived_ == static_cast<int>(slots_.size())) {
      taking_ = true;
      ++round_;
      changed_.NotifyAll();
    }
    MR_TRY(Await([&]() MR_NO_THREAD_SAFETY_ANALYSIS { return round_ != round; }));
    std::vector<at::Tensor> all = slots_;
    if (--arrived_ == 0) {
      taking_ = false;
      changed_.NotifyAll();
    }
    return all;
  }

  void Leave(int from, int to, const at::Tensor& tensor) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    mail_[from * slots_.size() + to].push_back(tensor.clone());
    changed_.NotifyAll();
  }
  Result<at::Tensor> Take(int from, int to) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    auto& box = mail_[from * slots_.size() + to];
    MR_TRY(Await([&]() MR_NO_THREAD_SAFETY_ANALYSIS { return !box.empty(); }));
    at::Tensor tensor = box.front();
    box.erase(box.begin());
    return tensor;
  }

  void Abandon() MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    abandoned_ = true;
    changed_.NotifyAll();
  }

 private:
  template <class Ready>
  Status Await(Ready ready) MR_REQUIRES(mutex_) {
    changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + timeout_, {},
                       [&]() MR_NO_THREAD_SAFETY_ANALYSIS { return abandoned_ || ready(); });
    if (ready()) return {};
    return Fail(Code::kUnavailable, "another rank is gone or does not answer");
  }

  const Duration timeout_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<at::Tensor> slots_ MR_GUARDED_BY(mutex_);
  std::vector<std::vector<at::Tensor>> mail_ MR_GUARDED_BY(mutex_);  ///< [from · size + to]
  int arrived_ MR_GUARDED_BY(mutex_) = 0;
  std::uint64_t round_ MR_GUARDED_BY(mutex_) = 0;
  bool taking_ MR_GUARDED_BY(mutex_) = false, abandoned_ MR_GUARDED_BY(mutex_) = false;
};

/// The tables of a group and of its duplicates. The first rank that needs a table makes it.
struct Hall {
  Hall(int group_size, Duration wait) : size(group_size), timeout(wait) {}
  std::shared_ptr<Table> At(const std::string& name) MR_EXCLUDES(mutex) {
    MutexLock lock(mutex);
    auto& table = tables[name];
    if (!table) table = std::make_shared<Table>(size, timeout);
    return table;
  }
  const int size;
  const Duration timeout;
  Mutex mutex;
  std::map<std::string, std::shared_ptr<Table>> tables MR_GUARDED_BY(mutex);
};

class Done final : public Collective::Pending {
 public:
  explicit Done(Status status) : status_(std::move(status)) {}
  Status Wait() override { return status_; }

 private:
  const Status status_;
};

class Local final : public Collective {
 public:
  Local(std::shared_ptr<Hall> hall, std::string name, int rank)
      : hall_(std::move(hall)), name_(std::move(name)), table_(hall_->At(name_)), rank_(rank) {}
  ~Local() override { table_->Abandon(); }

  int rank() const override { return rank_; }
  int size() const override { return hall_->size; }

  std::unique_ptr<Pending> StartAllReduce(at::Tensor tensor) override {
    auto all = table_->Exchange(rank_, tensor);
    if (!all) return std::make_unique<Done>(Fail(all.error()));
    tensor.copy_(Sum(*all));
    return std::make_unique<Done>(Status());
  }
  Result<std::vector<at::Tensor>> AllGather(const at::Tensor& mine) override { return table_->Exchange(rank_, mine); }
  Result<at::Tensor> ReduceScatter(const at::Tensor& all) override {
    const at::Tensor sum = Sum(MR_TRY(table_->Exchange(rank_, all)));
    const std::int64_t part = all.size(0) / size();
    return sum.narrow(0, rank_ * part, part).clone();
  }
  Status Broadcast(at::Tensor tensor, int root) override {
    const std::vector<at::Tensor> all = MR_TRY(table_->Exchange(rank_, tensor));
    tensor.copy_(all[root]);
    return {};
  }
  Status Send(const at::Tensor& tensor, int to) override {
    table_->Leave(rank_, to, tensor);
    return {};
  }
  Status Receive(at::Tensor tensor, int from) override {
    tensor.copy_(MR_TRY(table_->Take(from, rank_)));
    return {};
  }
  Status Barrier() override {
    MR_TRY(table_->Exchange(rank_, at::zeros({1})));
    return {};
  }
  Result<std::unique_ptr<Collective>> Duplicate(std::string name) override {
    return std::make_unique<Local>(hall_, name_ + "/" + name, rank_);
  }

 private:
  static at::Tensor Sum(const std::vector<at::Tensor>& all) {
    at::Tensor sum = all[0].clone();
    for (std::size_t i = 1; i < all.size(); ++i) sum.add_(all[i]);
    return sum;
  }

  const std::shared_ptr<Hall> hall_;
  const std::string name_;
  const std::shared_ptr<Table> table_;
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Collective>> ConnectLocal(int size, Duration timeout) {
  auto hall = std::make_shared<Hall>(size, timeout);
  std::vector<std::unique_ptr<Collective>> group;
  for (int rank = 0; rank < size; ++rank) group.push_back(std::make_unique<Local>(hall, "all", rank));
  return group;
}

}  // namespace millrace::engine
