// The pages of one directory's listing, fetched ahead of their reader.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/read_store.h"

namespace millrace::vfs {

/// Returns at most `most` keys at which a long listing may be split, so that the key ranges between them are listed at
/// the same time. `first` and `last` are the first and last key of the page read last. The characters before their
/// first difference are taken as a number in the alphabet of the keys. The result counts on from this number:
/// "key-017000" and "key-017999" give 017, so with a stride of 4 the result is "key-021", "key-025", … While fewer than
/// `most` numbers have as many digits, the stride is halved. The keys ascend and are greater than `last`. They are
/// guesses: a range may have any number of keys. Returns nothing if the keys have no such number.
std::vector<std::string> GuessSplitKeys(std::string_view prefix, std::string_view first, std::string_view last,
                                        int stride, int most);

/// Lists with the delimiter '/', in order, and prefetches pages. The pages of one key range are requested one after
/// another. A long listing is split into several key ranges, which are listed at the same time. A range ends where the
/// next one begins, so every key comes exactly once, even after a bad guess.
/// At most `most_ahead` pages wait for the reader.
///
/// The number of ranges adapts to the store. While pages are slow, and twice as many ranges bring more pages in the
/// same time, the number doubles, up to `parallel`. So a distant store gets all of them
/// (docs/benchmarks/mount.md, "Listings"). A server that only divides its work among the ranges gets fewer.
///
/// One thread calls Next. The destructor cancels the requests under way and waits for their end.
class PageStream {
 public:
  /// A store whose pages take this long is slow. With 20 ms more a request, a split listing takes less than half the
  /// time (docs/benchmarks/mount.md, "Listings").
  static constexpr Duration kSlowPage = std::chrono::milliseconds(20);
  struct Options {
    int parallel = 1;     ///< key ranges listed at the same time, at most
    int most_ahead = 40;  ///< pages that wait for the reader, at most
    int after_pages = 2;  ///< pages that are read before the listing is split
    /// The listing is split if a page takes this long: a faster store gains little.
    Duration slow_page = kSlowPage;
  };
  struct Page {
    object::ListPage page;  ///< without continuation
    TimePoint as_of;        ///< when it was requested
    bool last = false;
  };
  /// Lists the keys and common prefixes after `after`, up to and including `until` (empty: to the end).
  PageStream(object::ReadStore& store, const Clock& clock, std::string prefix, std::string after, std::string until,
             Options options);
  ~PageStream();
  PageStream(const PageStream&) = delete;
  PageStream& operator=(const PageStream&) = delete;

  /// Requests the first page. Does not block.
  void Start();
  /// Returns false if Next would block.
  bool ready() MR_EXCLUDES(mutex_);
  /// Returns the time that the fastest page took; nothing before the first page.
  std::optional<Duration> quickest_page() MR_EXCLUDES(mutex_);
  /// Returns the time at which the first waiting page was requested: at that time the directory existed. Returns
  /// nothing if the page is empty or fails, or if the call ends first. Blocks.
  std::optional<TimePoint> ConfirmedAt(const object::Call& call) MR_EXCLUDES(mutex_);
  /// Returns the next page. Call until a page is the last. Blocks. If a page fails, every call from then on returns its
  /// error.
  Result<Page> Next(const object::Call& call);

 private:
  /// A page that was requested.
  struct PageSlot {
    TimePoint when;  ///< of the request
    bool here = false;
    Page page = {};
  };
  /// The keys after `after`, up to and including `until`.
  struct KeyRange {
    std::string after, until;  ///< until empty: to the end
    std::string continuation;
    std::deque<PageSlot> pages;  ///< in order; at most the last two have not arrived
    bool requesting = false, done = false;
    std::optional<Error> error;
  };
  using KeyRanges = std::list<KeyRange>;

  bool Ready() const MR_REQUIRES(mutex_);
  bool AwaitPage(const object::Call& call) MR_REQUIRES(mutex_);
  void RequestPages() MR_EXCLUDES(mutex_);
  KeyRange* NextToRequest() MR_REQUIRES(mutex_);
  bool RequestNext(KeyRange& range, std::string continuation) MR_EXCLUDES(mutex_);
  void OnPage(KeyRange& range, PageSlot& slot, Result<object::ListPage> answer, bool early) MR_REQUIRES(mutex_);
  void Split(const object::ListPage& page) MR_REQUIRES(mutex_);
  void CountPage() MR_REQUIRES(mutex_);

  object::ReadStore& store_;
  const Clock& clock_;
  const std::string prefix_;
  const Options options_;
  std::stop_source stop_;

  Mutex mutex_;
  CondVar changed_;
  KeyRanges ranges_ MR_GUARDED_BY(mutex_);
  int requesting_ MR_GUARDED_BY(mutex_) = 0;  ///< pages whose requests are under way
  int running_ MR_GUARDED_BY(mutex_) = 0;     ///< callbacks that have not returned yet
  int waiting_pages_ MR_GUARDED_BY(mutex_) = 0;
  Duration quickest_ MR_GUARDED_BY(mutex_) = Duration::max();
  /// A trial of a number of ranges that are listed at the same time, and its speed.
  struct Trial {
    int ranges = 1;
    bool decided = false;
    TimePoint since;         ///< when all of them were under way
    int pages = 0;           ///< pages that arrived since then
    Duration each_before{};  ///< the time of a page with half as many ranges
  };
  Trial trial_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::vfs
