// The pages of one directory's listing, fetched ahead of whoever reads them.
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
#include "millrace/object/store.h"

namespace millrace::vfs {

/// Keys at which a listing that has come as far as `last` may be cut, so that the pieces are listed at the same time:
/// `first` and `last` are the first and last key of one page. Where they begin to differ, keys are counted on as
/// numbers in the alphabet seen there are (between "key-017000" and "key-017999" it is 017: "key-025", "key-033", …),
/// `stride` apart or less. Guesses: a piece may hold any number of keys. Ascending, greater than `last`; none when the
/// keys suggest none.
std::vector<std::string> GuessSplitKeys(std::string_view prefix, std::string_view first, std::string_view last,
                                        int stride, int most);

/// Lists with the delimiter '/', in order. Pages are asked for ahead of the reader: within a piece of the key space one
/// after another, several pieces at a time once the listing has shown to be long. A piece ends where the next begins,
/// whatever that cut was guessed from, so every key comes exactly once. Bounded by `most_ahead` pages that wait. One
/// reader; the destructor cancels what is under way and waits for it.
///
/// How many pieces: where pages are slow, twice as many are tried for as long as more pages come in the same time. What
/// is slow by distance, or has many machines, gets all of them; a server that only divides its work goes back to fewer.
class PageStream {
 public:
  static constexpr Duration kSlowPage = std::chrono::milliseconds(20);
  struct Options {
    int parallel = 1;     ///< pieces listed at a time, at most
    int most_ahead = 40;  ///< pages
    int after_pages = 2;  ///< so many pages come one after another before pieces are made
    /// Pieces are made where a page takes so long: elsewhere there is little to gain.
    Duration slow_page = kSlowPage;
  };
  struct Page {
    object::ListPage page;  ///< without continuation
    TimePoint as_of;        ///< when it was asked for
    bool last = false;
  };
  /// Of the keys and common prefixes after `after`, up to and with `until` (empty: to the end).
  PageStream(object::Store& store, const Clock& clock, std::string prefix, std::string after, std::string until,
             Options options);
  ~PageStream();
  PageStream(const PageStream&) = delete;
  PageStream& operator=(const PageStream&) = delete;

  /// Asks for the first page already. Does not block.
  void Start();
  /// False when Next would wait.
  bool ready() MR_EXCLUDES(mutex_);
  /// What the quickest page took until now; nothing before the first.
  std::optional<Duration> quickest_page() MR_EXCLUDES(mutex_);
  /// When the store was asked for the first page that waits; nothing when it is empty, or none comes. Blocks.
  std::optional<TimePoint> ConfirmedAt(const object::Call& call) MR_EXCLUDES(mutex_);
  /// The next page; call until one is the last. Blocks; the error of a page comes in its place, and the same again.
  Result<Page> Next(const object::Call& call);

 private:
  /// A page that has come, or will.
  struct PageSlot {
    TimePoint when;
    bool here = false;
    Page page = {};
  };
  /// A piece of the key space: after `after`, up to and with `until`.
  struct KeyRange {
    std::string after, until;  ///< until empty: to the end
    std::string continuation;
    std::deque<PageSlot> pages;  ///< in their order; at most the last two are still to come
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

  object::Store& store_;
  const Clock& clock_;
  const std::string prefix_;
  const Options options_;
  std::stop_source stop_;

  Mutex mutex_;
  CondVar changed_;
  KeyRanges ranges_ MR_GUARDED_BY(mutex_);
  int requesting_ MR_GUARDED_BY(mutex_) = 0;  ///< pages that the store works on
  int running_ MR_GUARDED_BY(mutex_) = 0;     ///< callbacks that are still to end
  int waiting_pages_ MR_GUARDED_BY(mutex_) = 0;
  Duration quickest_ MR_GUARDED_BY(mutex_) = Duration::max();
  /// How many pieces may be listed at a time now, and what came of it.
  struct Trial {
    int ranges = 1;
    bool decided = false;
    TimePoint since;         ///< so many were under way
    int pages = 0;           ///< that came since then
    Duration each_before{};  ///< a page took with half as many
  };
  Trial trial_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::vfs
