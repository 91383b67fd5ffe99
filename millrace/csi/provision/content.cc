#include "millrace/csi/provision/content.h"

#include <chrono>
#include <unordered_map>
#include <vector>

#include "millrace/base/threads/parallel_for.h"
#include "millrace/object/blocking.h"
#include "millrace/transfer/copy/copy.h"

namespace millrace::csi {
namespace {

constexpr int kParallelCopies = 16;  // requests of which the server does the work
/// Longer than a request to copy takes. A copy can have another ETag than its source (parts, encryption by keys of
/// KMS); then only a copy that is younger by this time must be of the source's last version: times count seconds, and a
/// copy may show the time of its end.
constexpr auto kLongestCopy = std::chrono::minutes(10);

/// The objects of a destination, read in step with the pages of a source.
class DestinationListing {
 public:
  DestinationListing(const ContentFolder& folder, const object::Call& call) : folder_(folder), call_(call) {}

  /// Reads on until the object of that name (below the prefix), if any, is known. Names come in ascending order.
  Status AdvanceTo(const std::string& name) {
    while (!ended_ && last_ < name) {
      const object::ListPage page =
          MR_TRY(object::List(folder_.store, {.prefix = folder_.prefix, .continuation = continuation_}, call_));
      for (const object::ObjectInfo& info : page.objects) {
        last_ = info.key.substr(folder_.prefix.size());
        found_[last_] = info;
      }
      continuation_ = page.continuation;
      ended_ = continuation_.empty();
    }
    return {};
  }
  bool Has(const object::ObjectInfo& source, const std::string& name) const {
    const auto found = found_.find(name);
    if (found == found_.end() || found->second.size != source.size) return false;
    return found->second.etag == source.etag || found->second.modified >= source.modified + kLongestCopy;
  }
  /// Forgets the names before.
  void Trim(const std::string& name) {
    std::erase_if(found_, [&](const auto& entry) { return entry.first < name; });
  }

 private:
  const ContentFolder& folder_;
  const object::Call& call_;
  std::unordered_map<std::string, object::ObjectInfo> found_;
  std::string continuation_, last_;
  bool ended_ = false;
};

}  // namespace

Result<std::uint64_t> CopyContent(const ContentFolder& from, const ContentFolder& to, const object::Call& call) {
  DestinationListing there(to, call);
  std::uint64_t bytes = 0;
  Status copied;
  auto copy_page = [&](const object::ListPage& page) -> Status {
    std::vector<const object::ObjectInfo*> wanted;
    for (const object::ObjectInfo& info : page.objects) {
      const std::string name = info.key.substr(from.prefix.size());
      MR_TRY(there.AdvanceTo(name));
      bytes += info.size;
      if (!there.Has(info, name)) wanted.push_back(&info);
    }
    if (!page.objects.empty()) there.Trim(page.objects.back().key.substr(from.prefix.size()));
    auto copy = [&](std::uint64_t i, std::stop_token stop) {
      const object::ObjectInfo& info = *wanted[i];
      return transfer::CopyObject(from.store, info, to.store, to.prefix + info.key.substr(from.prefix.size()),
                                  {.source_bucket = from.bucket == to.bucket ? "" : from.bucket}, {},
                                  {.stop = std::move(stop), .deadline = call.deadline});
    };
    return ParallelFor("csi-copy", wanted.size(), kParallelCopies, call.stop, [&] { return copy; });
  };
  MR_TRY(object::ListAll(
      from.store, {.prefix = from.prefix},
      [&](const object::ListPage& page) {
        copied = copy_page(page);
        return copied.has_value();
      },
      call));
  MR_TRY(std::move(copied));
  return bytes;
}

Status DeleteContent(const ContentFolder& folder, const object::Call& call) {
  while (true) {
    // From the beginning each time: what a page named is gone.
    const object::ListPage page = MR_TRY(object::List(folder.store, {.prefix = folder.prefix}, call));
    std::vector<std::string> keys;
    for (const object::ObjectInfo& info : page.objects) keys.push_back(info.key);
    if (keys.empty()) break;
    const auto failures = MR_TRY(object::DeleteMany(folder.store, std::move(keys), call));
    if (!failures.empty()) return Fail(failures.front().error.Context("cannot delete " + failures.front().key));
  }
  for (const object::UploadInfo& upload : MR_TRY(object::ListUploads(folder.store, folder.prefix, call))) {
    MR_TRY(object::AbortMultipart(folder.store, upload.key, upload.upload_id, call));
  }
  return {};
}

Result<bool> HasContent(object::Store& store, const std::string& prefix, const object::Call& call) {
  return !MR_TRY(object::List(store, {.prefix = prefix, .max_keys = 1}, call)).objects.empty();
}

}  // namespace millrace::csi
