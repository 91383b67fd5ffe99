#include "millrace/vfs/read/file_readahead.h"

#include <algorithm>

#include "millrace/vfs/types/names.h"

namespace millrace::vfs {
namespace {

constexpr std::size_t kMaxWatches = 64;  ///< directories; bounds the memory; a guess
/// Opens in the order of names before the order of a directory is followed. Each attempt doubles the number; a guess.
constexpr int kAscending = 2, kMaxAscending = 1024;
/// Names that stay in an order behind the file opened last. A guess: several readers follow one order.
constexpr std::uint64_t kKeepBehind = 4096;
constexpr std::size_t kMaxGuesses = 1024;  ///< not opened yet; bounds the memory; a guess
/// A file above kWholeFileBytes is read ahead only at its beginning.
constexpr std::uint64_t kWholeFileBytes = 8 * kMiB, kBeginningBytes = 1 * kMiB;

}  // namespace

FileReadahead::FileReadahead(object::ReadStore& store, cache::BlockCache& cache, MetadataCache& metadata,
                             const AttributeStore& attributes, const Clock& clock, Options options)
    : store_(store),
      cache_(cache),
      metadata_(metadata),
      attributes_(attributes),
      clock_(clock),
      options_(std::move(options)) {}

FileReadahead::~FileReadahead() {
  stop_.request_stop();
  MutexLock lock(mutex_);
  while (requests_ > 0) changed_.Wait(mutex_);
}

void FileReadahead::FileOrder::Add(std::string path) {
  positions[path] = end();
  paths.push_back(std::move(path));
}

void FileReadahead::OnOpen(const std::string& path) {
  DeferredWork work;
  {
    MutexLock lock(mutex_);
    const bool guessed = guesses_.contains(path);
    stats_.opened += guessed;
    DropGuess(path);
    bool hinted = false;
    if (hints_) {
      if (auto position = hints_->positions.find(path); position != hints_->positions.end()) {
        hinted = true;
        const auto opened = position->second;  // its node is erased below
        hints_->plan = hints_->guess.OnOpen(opened, guessed, clock_.Now());
        while (hints_->begin <= opened) {  // names before the opened one are not expected any more
          auto known = hints_->positions.find(hints_->paths.front());
          if (known != hints_->positions.end() && known->second == hints_->begin) hints_->positions.erase(known);
          hints_->paths.pop_front();
          ++hints_->begin;
        }
        ExtendGuesses(hints_, work);
      }
    }
    if (!hinted) FollowDirectory(path, guessed, work);
  }
  Perform(std::move(work));
}

std::size_t FileReadahead::WillOpen(std::vector<std::string> paths) {
  DeferredWork work;
  std::size_t taken = 0;
  {
    MutexLock lock(mutex_);
    if (!hints_) {
      OrderGuess::Options trusting = options_.guess;
      trusting.initial_credit = 2 * trusting.most_ahead;
      hints_ = std::make_shared<FileOrder>(trusting);
      hints_->plan = {.first = 0, .step = 1, .count = trusting.most_ahead};
    }
    for (; taken < paths.size() && hints_->paths.size() < options_.most_hints; ++taken) {
      hints_->Add(std::move(paths[taken]));
    }
    ExtendGuesses(hints_, work);
  }
  Perform(std::move(work));
  return taken;
}

FileReadahead::Stats FileReadahead::stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

/// Reports an open to its directory's order. If the file is in no order, starts one after enough opens in ascending
/// order.
void FileReadahead::FollowDirectory(const std::string& path, bool guessed, DeferredWork& work) {
  const std::string directory(DirectoryOf(path));
  if (!watches_.contains(directory) && watches_.size() >= kMaxWatches) {
    watches_.erase(std::ranges::min_element(watches_, {}, [](const auto& watch) { return watch.second.used; }));
  }
  DirectoryWatch& watch = watches_[directory];
  watch.used = ++uses_;
  const bool ascends = path > watch.last && !watch.last.empty();
  watch.ascending = ascends ? watch.ascending + 1 : 0;
  watch.last = path;
  if (FileOrderPtr order = watch.order) {
    if (auto position = order->positions.find(path); position != order->positions.end()) {
      order->plan = order->guess.OnOpen(position->second, guessed, clock_.Now());
      while (order->begin + kKeepBehind < position->second) {
        order->positions.erase(order->paths.front());
        order->paths.pop_front();
        ++order->begin;
      }
      ExtendGuesses(order, work);
      return;
    }
    if (order->asking && order->paths.empty()) return;  // its first page is under way
    // An order whose guesses were right is tried again after few opens.
    if (order->guess.credit() >= options_.guess.most_ahead / 2) watch.needed = kAscending;
  }
  watch.needed = std::max(watch.needed, kAscending);
  if (watch.ascending >= watch.needed) StartOrder(watch, directory, path, work);
}

void FileReadahead::StartOrder(DirectoryWatch& watch, const std::string& directory, const std::string& after,
                               DeferredWork& work) {
  watch.needed = std::min(watch.needed * 2, kMaxAscending);
  watch.ascending = 0;
  watch.order = std::make_shared<FileOrder>(options_.guess);
  watch.order->listing.emplace(store_, metadata_, clock_, directory,
                               Listing::Position{.start_after = after, .held = {}});
  watch.order->plan = {.first = 0, .step = 1, .count = options_.guess.initial_credit};
  watch.order->asking = true;
  work.list = watch.order;
}

/// Makes the guesses of the plan, as far as names are known and there is room. Requests the next page in time.
void FileReadahead::ExtendGuesses(const FileOrderPtr& order, DeferredWork& work) {
  const OrderGuess::Plan& plan = order->plan;
  std::uint64_t position = plan.first;
  for (int i = 0; i < plan.count && order->guess.credit() > 0; ++i, position += plan.step) {
    if (position < order->begin) continue;
    if (position >= order->end()) break;
    const std::string& path = order->paths[position - order->begin];
    if (guesses_.contains(path)) continue;
    if (!AddGuess(path, work)) break;
    order->guess.OnGuess();
  }
  const std::uint64_t needed = plan.first + plan.step * static_cast<std::uint64_t>(2 * options_.guess.most_ahead);
  if (order->listing && !order->listing->done() && !order->asking && needed > order->end()) {
    order->asking = true;
    work.list = order;
  }
}

bool FileReadahead::HasRoom() {
  const TimePoint now = clock_.Now();
  while (!oldest_.empty() && (guessed_bytes_ >= options_.most_bytes || guesses_.size() >= kMaxGuesses)) {
    // A guess that was not opened in time was wrong. A younger guess may still be right.
    const Guess& oldest = guesses_.at(oldest_.front());
    if (now - oldest.made < 2 * OrderGuess::kHorizon) return false;
    DropGuess(std::string(oldest_.front()));
  }
  return true;
}

bool FileReadahead::AddGuess(const std::string& path, DeferredWork& work) {
  if (!HasRoom()) return false;
  Guess& guess = guesses_[path];
  guess.made = clock_.Now();
  guess.position = oldest_.insert(oldest_.end(), path);
  auto known = metadata_.FindLast(path);
  if (known && known->absent()) known.reset();  // it may have been created since
  if (known) guess.bytes = BytesAhead(*known);
  guessed_bytes_ += guess.bytes;
  ++stats_.guesses;
  work.guesses.emplace_back(path, std::move(known));
  return true;
}

std::uint64_t FileReadahead::BytesAhead(const Metadata& metadata) const {
  return metadata.size <= kWholeFileBytes ? metadata.size : std::min(metadata.size, kBeginningBytes);
}

void FileReadahead::DropGuess(const std::string& path) {
  auto guess = guesses_.find(path);
  if (guess == guesses_.end()) return;
  guessed_bytes_ -= guess->second.bytes;
  oldest_.erase(guess->second.position);
  guesses_.erase(guess);
}

void FileReadahead::Perform(DeferredWork work) {
  if (work.list) NextPage(std::move(work.list));
  for (auto& [path, known] : work.guesses)
    known ? Fetch(path, *std::move(known)) : RequestHead(path, /*fetch_then=*/true);
}

/// Fetches a guess into the cache. Sends a Head if neither the fetch nor a recent answer proves the version.
void FileReadahead::Fetch(const std::string& path, Metadata metadata) {
  const std::uint64_t bytes = BytesAhead(metadata);
  const TimePoint began = clock_.Now();
  std::optional<TimePoint> asked;
  bool fetched = metadata.is_file();
  if (fetched && !(options_.has_bytes && options_.has_bytes(path, metadata.etag))) {
    const auto prefetched = cache_.Prefetch({path, metadata.etag, metadata.size}, 0, bytes);
    fetched = prefetched.bytes == bytes;
    asked = prefetched.asked;
  }
  {
    MutexLock lock(mutex_);
    auto found = guesses_.find(path);
    if (found == guesses_.end()) return;  // opened already
    Guess& guess = found->second;
    if (!fetched) {
      DropGuess(path);
      return changed_.NotifyAll();
    }
    guessed_bytes_ += bytes - guess.bytes;
    guess.bytes = bytes;
    // Stored attributes can change while the ETag stays. So the fetch proves only a version without them.
    const bool proves = asked && *asked >= began && !metadata.attributes;
    if (proves) {
      metadata.as_of = *asked;
      metadata.complete = metadata.settled = false;
    }
    const bool fresh = options_.trust == Duration::zero() || metadata.as_of >= began - options_.trust / 2;
    guess.state = proves ? Guess::State::kFetching : fresh ? Guess::State::kKnown : Guess::State::kAsking;
    guess.metadata = std::move(metadata);
    changed_.NotifyAll();
    if (guess.state != Guess::State::kAsking) return;
  }
  RequestHead(path, /*fetch_then=*/false);
}

void FileReadahead::RequestHead(const std::string& path, bool fetch_then) {
  BeginRequest();
  const TimePoint asked = clock_.Now();
  store_.Head(path, {.stop = stop_.get_token()}, [this, path, asked, fetch_then](auto info) {
    std::optional<Metadata> now;
    if (info && *info) now = attributes_.FromHead(**info, asked);
    if (now) metadata_.Put(path, *now);
    bool fetch = false;
    {
      MutexLock lock(mutex_);
      if (auto guess = guesses_.find(path); guess != guesses_.end()) {
        fetch = now && fetch_then;
        const bool same = now && guess->second.metadata && guess->second.metadata->etag == now->etag;
        if (same) {
          guess->second.state = Guess::State::kKnown;
          guess->second.metadata = now;
        } else if (!fetch) {
          DropGuess(path);
        }
      }
      changed_.NotifyAll();
    }
    if (fetch) Fetch(path, *std::move(now));
    EndRequest();
  });
}

void FileReadahead::NextPage(FileOrderPtr order) {
  BeginRequest();
  const TimePoint asked = clock_.Now();
  object::ListRequest request = order->listing->NextRequest();
  store_.List(std::move(request), {.stop = stop_.get_token()}, [this, order, asked](auto page) {
    DeferredWork work;
    {
      MutexLock lock(mutex_);
      order->asking = false;
      auto names = page ? order->listing->Accept(*std::move(page), asked) : Fail(page.error());
      if (names) {
        const std::string directory = order->listing->directory();
        for (ListedName& listed : *names) {
          if (listed.metadata.is_file() && listed.metadata.size > 0) order->Add(directory + listed.name);
        }
        ExtendGuesses(order, work);
      }
    }
    Perform(std::move(work));
    EndRequest();
  });
}

std::optional<Metadata> FileReadahead::Confirm(const std::string& path, const object::Call& call) {
  Metadata metadata;
  std::uint64_t bytes = 0;
  {
    MutexLock lock(mutex_);
    using State = Guess::State;
    auto settled = [&]() MR_NO_THREAD_SAFETY_ANALYSIS {
      auto guess = guesses_.find(path);
      return guess == guesses_.end() || guess->second.state == State::kFetching || guess->second.state == State::kKnown;
    };
    if (!guesses_.contains(path)) return std::nullopt;
    const Deadline& deadline = call.deadline;
    const bool waited = deadline.infinite() ? changed_.Wait(mutex_, call.stop, settled)
                                            : changed_.WaitUntil(mutex_, deadline.at(), call.stop, settled);
    auto guess = guesses_.find(path);
    if (!waited || guess == guesses_.end()) return std::nullopt;
    metadata = *guess->second.metadata;
    if (clock_.Now() - metadata.as_of >= options_.trust) return std::nullopt;
    bytes = guess->second.state == State::kFetching ? guess->second.bytes : 0;
  }
  if (bytes > 0) {
    // The bytes came with If-Match, so they prove the version.
    auto proof = cache_.Fetch({path, metadata.etag, metadata.size}, 0, bytes, call);
    if (!proof || !proof->asked || clock_.Now() - *proof->asked >= options_.trust) {
      MutexLock lock(mutex_);
      DropGuess(path);
      return std::nullopt;
    }
    metadata.as_of = *proof->asked;
  }
  auto last = metadata_.FindLast(path);
  if (last && last->as_of > metadata.as_of) return std::nullopt;  // a later answer, or this tree's own change, is known
  metadata_.Put(path, metadata);
  return metadata;
}

void FileReadahead::BeginRequest() {
  MutexLock lock(mutex_);
  ++requests_;
}

void FileReadahead::EndRequest() {
  MutexLock lock(mutex_);
  if (--requests_ == 0) changed_.NotifyAll();
}

}  // namespace millrace::vfs
