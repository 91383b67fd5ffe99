#include "millrace/collectives/direct_exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "millrace/base/threads/sync.h"
#include "millrace/collectives/operation_label.h"
#include "millrace/collectives/testing/array.h"

namespace millrace::collectives {
namespace {

/// The messages between the ranks of a test. Thread-safe.
class PostOffice {
 public:
  explicit PostOffice(int ranks) : ranks_(ranks), boxes_(static_cast<std::size_t>(ranks * ranks)) {}
  void Put(int from, int to, std::vector<std::byte> message) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    boxes_[from * ranks_ + to].push_back(std::move(message));
    changed_.NotifyAll();
  }
  std::vector<std::byte> Take(int from, int to) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    auto& box = boxes_[from * ranks_ + to];
    while (box.empty()) changed_.Wait(mutex_);
    std::vector<std::byte> message = std::move(box.front());
    box.pop_front();
    return message;
  }

 private:
  const int ranks_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::deque<std::vector<std::byte>>> boxes_ MR_GUARDED_BY(mutex_);
};

/// A link that counts the bytes that its rank sends.
class CountingLink final : public PeerLink {
 public:
  CountingLink(PostOffice& office, int rank, int size) : office_(office), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::size_t sent() const { return sent_; }

  Result<std::unique_ptr<Transfer>> StartSend(ByteSpan bytes, int to) override {
    sent_ += bytes.size();
    office_.Put(rank_, to, {bytes.begin(), bytes.end()});
    return std::make_unique<Arrival>([] {});
  }
  Result<std::unique_ptr<Transfer>> StartReceive(MutableByteSpan into, int from) override {
    return std::make_unique<Arrival>([this, into, from] {
      const std::vector<std::byte> message = office_.Take(from, rank_);
      ASSERT_EQ(message.size(), into.size());
      std::ranges::copy(message, into.begin());
    });
  }

 private:
  class Arrival final : public Transfer {
   public:
    explicit Arrival(std::function<void()> take) : take_(std::move(take)) {}
    Status Wait() override {
      take_();
      return {};
    }

   private:
    const std::function<void()> take_;
  };

  PostOffice& office_;
  const int rank_, size_;
  std::size_t sent_ = 0;
};

/// Runs `work` on every rank and returns the bytes that each of them sent, without labels.
std::vector<std::size_t> BytesSent(int ranks, const std::function<Status(PeerLink&)>& work) {
  PostOffice office(ranks);
  std::vector<std::size_t> sent(static_cast<std::size_t>(ranks));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        CountingLink link(office, rank, ranks);
        const Status done = work(link);
        EXPECT_TRUE(done) << done.error().ToString();
        sent[rank] = link.sent() - static_cast<std::size_t>(ranks - 1) * sizeof(OperationLabel);
      });
    }
  }
  return sent;
}

TEST(DirectExchange, EachRankSendsNoMoreThanItsShare) {
  for (const int ranks : {2, 3, 4}) {
    SCOPED_TRACE(ranks);
    const std::int64_t part = 600'000, all_elements = part * ranks;  // more than two pieces
    const std::size_t all_bytes = static_cast<std::size_t>(all_elements) * sizeof(float);
    const std::size_t share = all_bytes / ranks * (ranks - 1);  // (n-1)/n
    const std::vector<std::size_t> each(static_cast<std::size_t>(ranks), share);
    EXPECT_EQ(
        BytesSent(ranks,
                  [&](PeerLink& link) -> Status {
                    const Array<float> mine(part);
                    MR_TRY(DirectReduceScatter(
                        link, mine, Array<float>(all_elements, static_cast<float>(link.rank() + 1)), Reduction::kSum));
                    EXPECT_TRUE(mine.IsFilledWith(static_cast<float>(ranks * (ranks + 1)) / 2));
                    return {};
                  }),
        each);
    EXPECT_EQ(BytesSent(ranks,
                        [&](PeerLink& link) -> Status {
                          const Array<float> all(all_elements);
                          MR_TRY(DirectAllGather(link, all, Array<float>(part, static_cast<float>(link.rank() + 1))));
                          EXPECT_EQ(all.values().back(), static_cast<float>(ranks));
                          return {};
                        }),
              each);
    std::vector<std::size_t> twice(static_cast<std::size_t>(ranks), 2 * share);
    EXPECT_EQ(BytesSent(ranks,
                        [&](PeerLink& link) -> Status {
                          const Array<float> numbers(all_elements, 1);
                          MR_TRY(DirectAllReduce(link, numbers, Reduction::kSum));
                          EXPECT_TRUE(numbers.IsFilledWith(static_cast<float>(ranks)));
                          return {};
                        }),
              twice);
    const std::vector<std::size_t> broadcast = BytesSent(ranks, [&](PeerLink& link) -> Status {
      const Array<float> told(all_elements, static_cast<float>(link.rank()));
      MR_TRY(DirectBroadcast(link, told, 1));
      EXPECT_TRUE(told.IsFilledWith(1));
      return {};
    });
    EXPECT_LE(broadcast[1], 2 * all_bytes);
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank != 1) EXPECT_LE(broadcast[rank], all_bytes);
    }
  }
}

}  // namespace
}  // namespace millrace::collectives
