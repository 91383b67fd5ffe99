// Ranks as threads of one process, and a connection to one given store: for tests of this module and of its users.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/checkpoint/save/rank_exchange.h"
#include "millrace/object/connection.h"

namespace millrace::checkpoint::testing {

/// N ranks that exchange strings through memory. Each rank's RankExchange belongs to one thread at a time; all of them
/// may outlive this object.
class ThreadRanks {
 public:
  explicit ThreadRanks(int size) : shared_(std::make_shared<Shared>()) { shared_->size = size; }
  std::shared_ptr<RankExchange> Rank(int rank) { return std::make_shared<Member>(shared_, rank); }
  /// From now on every exchange fails with kUnavailable, waiting ones too, as when a rank's process has died.
  void Break() {
    MutexLock lock(shared_->mutex);
    shared_->broken = true;
    shared_->changed.NotifyAll();
  }

 private:
  /// The messages of the ranks in one exchange; every rank counts exchanges for itself.
  struct Exchange {
    std::vector<std::optional<std::string>> said;
  };
  struct Shared {
    int size = 1;
    Mutex mutex;
    CondVar changed;
    bool broken MR_GUARDED_BY(mutex) = false;
    std::vector<Exchange> exchanges MR_GUARDED_BY(mutex);

    /// Says `text` as `rank` and waits until ranks [first, last) have spoken.
    Result<std::vector<std::string>> Speak(std::size_t exchange, int rank, std::string text, int first, int last) {
      MutexLock lock(mutex);
      while (exchanges.size() <= exchange) exchanges.push_back({std::vector<std::optional<std::string>>(size)});
      if (!broken) exchanges[exchange].said[rank] = std::move(text);
      changed.NotifyAll();
      std::vector<std::string> heard;
      for (int other = first; other < last; ++other) {
        while (!broken && !exchanges[exchange].said[other]) changed.Wait(mutex);
        if (broken) return Fail(Code::kUnavailable, "rank {} is gone", other);
        heard.push_back(*exchanges[exchange].said[other]);
      }
      return heard;
    }
  };
  class Member final : public RankExchange {
   public:
    Member(std::shared_ptr<Shared> shared, int rank) : shared_(std::move(shared)), rank_(rank) {}
    int rank() const override { return rank_; }
    int size() const override { return shared_->size; }
    Result<std::vector<std::string>> Gather(std::string mine) override {
      return shared_->Speak(next_++, rank_, std::move(mine), 0, rank_ == 0 ? shared_->size : 0);
    }
    Result<std::string> Broadcast(std::string from_rank_0) override {
      auto heard = MR_TRY(shared_->Speak(next_++, rank_, std::move(from_rank_0), 0, 1));
      return std::move(heard[0]);
    }

   private:
    const std::shared_ptr<Shared> shared_;
    const int rank_;
    std::size_t next_ = 0;
  };

  std::shared_ptr<Shared> shared_;
};

/// Every URL leads to the same store, whatever its bucket.
class StoreConnection final : public object::Connection {
 public:
  explicit StoreConnection(std::shared_ptr<object::Store> store) : store_(std::move(store)) {}
  Result<std::shared_ptr<object::Store>> OpenStore(const object::Url&) override { return store_; }
  Result<std::shared_ptr<object::Service>> OpenService() override {
    return Fail(Code::kUnsupported, "one store, no service");
  }

 private:
  const std::shared_ptr<object::Store> store_;
};

}  // namespace millrace::checkpoint::testing
