// object::Store over the hub's API, for reading. Internal to this module. Hub::OpenRepository makes the stores.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/threads/sync.h"
#include "millrace/object/hf/hub_client.h"
#include "millrace/object/hf/listings.h"
#include "millrace/object/hf/repository.h"
#include "millrace/object/s3/requests/in_flight.h"
#include "millrace/object/support/read_only_store.h"

namespace millrace::object::hf {

/// The files of one commit. Writes fail with kReadOnly. The ETag of a file is the hub's hash of its content, and its
/// time is the commit's.
class HubStore final : public ReadOnlyStore {
 public:
  HubStore(std::shared_ptr<HubClient> client, Repository repository);

  std::string Describe() const override { return repository_.Describe(); }
  std::string Identity() const override;
  /// The commit that this store reads. Blocks on a request the first time.
  Result<std::string> ReadCommit(Call call);

  void Head(std::string key, Call call, Done<std::optional<ObjectInfo>> done) override;
  void Get(std::string key, GetOptions options, MutableByteSpan into, Call call,
           Done<std::optional<GetResult>> done) override;
  void GetTo(std::string key, GetOptions options, std::uint64_t limit, Sink& sink, Call call,
             Done<std::optional<GetResult>> done) override;
  void List(ListRequest request, Call call, Done<ListPage> done) override;

  Result<std::string> Presign(std::string_view method, std::string_view key, Duration valid_for) override;

 private:
  /// The commit that the revision was when this store first asked.
  struct Commit {
    std::string sha;
    WallTime time;
  };
  /// The destination of the bytes of a Get: `into`, or `sink` with at most `room` bytes.
  struct Target {
    MutableByteSpan into;
    Sink* sink = nullptr;
    std::uint64_t room = 0;
  };
  struct PageWalk;

  /// Makes the call one of this store's, whose destruction cancels it and waits for it.
  template <class T>
  Done<T> Begin(Call& call, Done<T> done);

  Error WriteRefusal(const std::string& key) const override;

  // Each asks the hub only for what is not known yet, and otherwise calls `then` at once.
  void WithCommit(Call call, std::move_only_function<void(Result<Commit>)> then) MR_EXCLUDES(mutex_);
  void WithFile(std::string key, Call call, std::move_only_function<void(Result<KnownFiles::Answer>)> then);
  void WithListing(ListingScope scope, Call call, Done<std::shared_ptr<const Listing>> then);
  void ReadPages(std::unique_ptr<PageWalk> walk, std::string url);

  void Read(std::string key, GetOptions options, Target target, Call call, Done<std::optional<GetResult>> done);
  void Fetch(const Commit& commit, HubFile file, ByteRange range, Target target, Call call,
             Done<std::optional<GetResult>> done);
  std::string NameOf(const std::string& key) const { return repository_.Describe() + "/" + key; }
  std::string RedirectOf(const std::string& key) MR_EXCLUDES(mutex_);
  void KeepRedirect(const std::string& key, std::string url) MR_EXCLUDES(mutex_);

  const std::shared_ptr<HubClient> client_;
  const Repository repository_;
  KnownFiles known_;
  Mutex mutex_;
  std::optional<Commit> commit_ MR_GUARDED_BY(mutex_);
  struct Redirect {
    std::string url;
    TimePoint until;
  };
  std::map<std::string, Redirect> redirects_ MR_GUARDED_BY(mutex_);  ///< by key
  s3::InFlight in_flight_;  ///< last: its destruction waits for calls that use the other members
};

}  // namespace millrace::object::hf
