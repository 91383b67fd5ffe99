#include "millrace/csi/provision/provisioner.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>

#include "millrace/base/text.h"
#include "millrace/csi/provision/content.h"
#include "millrace/object/blocking.h"

namespace millrace::csi {
namespace {

constexpr char kBucketParameter[] = "bucketName";
constexpr char kPrefixParameter[] = "prefix";
constexpr char kOwnBucketParameter[] = "bucketPerVolume";
constexpr char kBucketPrefixParameter[] = "bucketNamePrefix";
constexpr char kOnDeleteParameter[] = "onDelete";
constexpr char kCapacityParameter[] = "capacity";
constexpr auto kParameters =
    std::to_array<std::string_view>({kBucketParameter, kPrefixParameter, kOwnBucketParameter, kBucketPrefixParameter,
                                     kOnDeleteParameter, kCapacityParameter, kEnforceCapacityParameter});
constexpr char kDefaultBucketPrefix[] = "millrace-";
constexpr std::uint64_t kMaxMarkBytes = 256 * kKiB;
// No bucket has a limit. Sums of it do not overflow.
constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max() / 1024;
constexpr std::string_view kTokenBegin = "after:";

std::string Value(const std::map<std::string, std::string>& parameters, const std::string& name) {
  const auto found = parameters.find(name);
  return found == parameters.end() ? "" : found->second;
}

/// The parameters of the class, without those that Kubernetes adds.
std::map<std::string, std::string> OwnParameters(const std::map<std::string, std::string>& parameters) {
  std::map<std::string, std::string> own = parameters;
  std::erase_if(own, [](const auto& entry) { return entry.first.contains('/'); });
  return own;
}

Status CheckParameters(const std::map<std::string, std::string>& own) {
  for (const auto& [name, value] : own) {
    if (std::ranges::find(kParameters, name) == kParameters.end()) {
      return Fail(Code::kInvalidArgument, "{}", UnknownName("StorageClass parameter", name, kParameters));
    }
  }
  const std::string on_delete = Value(own, kOnDeleteParameter);
  if (!on_delete.empty() && on_delete != "delete" && on_delete != "retain") {
    return Fail(Code::kInvalidArgument, "onDelete is \"{}\"; it must be \"delete\" or \"retain\"", on_delete);
  }
  const std::string own_bucket = Value(own, kOwnBucketParameter);
  if (!own_bucket.empty() && own_bucket != "true" && own_bucket != "false") {
    return Fail(Code::kInvalidArgument, "bucketPerVolume is \"{}\"; it must be \"true\" or \"false\"", own_bucket);
  }
  const std::string enforce = Value(own, kEnforceCapacityParameter);
  if (!enforce.empty() && enforce != "true" && enforce != "false") {
    return Fail(Code::kInvalidArgument, "{} is \"{}\"; it must be \"true\" or \"false\"", kEnforceCapacityParameter,
                enforce);
  }
  if (own_bucket == "true" && (own.contains(kBucketParameter) || own.contains(kPrefixParameter))) {
    return Fail(Code::kInvalidArgument, "bucketPerVolume makes the buckets itself: leave out bucketName and prefix");
  }
  return {};
}

Result<std::int64_t> ParseCapacity(const std::string& text) {
  // Kubernetes writes Gi for GiB.
  const std::uint64_t bytes = MR_TRY(ParseBytes(text.ends_with('i') ? text + "B" : text));
  return static_cast<std::int64_t>(std::min<std::uint64_t>(bytes, kUnlimited));
}

Result<VolumeLocation> ParsePlace(const std::string& bucket, std::string prefix) {
  const object::Url url = MR_TRY(object::ParseUrl("s3://" + bucket));
  if (url.bucket.empty() || url.bucket != bucket) {
    return Fail(Code::kInvalidArgument, "\"{}\" is not the name of a bucket", bucket);
  }
  while (prefix.ends_with('/')) prefix.pop_back();
  if (prefix.starts_with('/') || prefix.contains("//")) {
    return Fail(Code::kInvalidArgument, "\"{}\" is no prefix for volumes: it has an empty part", prefix);
  }
  return VolumeLocation{.bucket = bucket, .prefix = prefix.empty() ? "" : prefix + "/"};
}

Status CheckSize(const VolumeRequest& request) {
  if (request.required_bytes < 0 || request.limit_bytes < 0) {
    return Fail(Code::kInvalidArgument, "a volume cannot have a negative size");
  }
  if (request.limit_bytes != 0 && request.required_bytes > request.limit_bytes) {
    return Fail(Code::kInvalidArgument, "the volume must have at least {} bytes and at most {}", request.required_bytes,
                request.limit_bytes);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Provisioner>> Provisioner::Create(ProvisionerOptions options) {
  std::optional<VolumeLocation> place;
  if (!options.default_place.empty()) {
    const object::Url url = MR_TRY(object::ParseUrl(options.default_place));
    if (url.scheme != object::Url::Scheme::kS3) {
      return Fail(Code::kInvalidArgument, "volumes are in buckets; {} is none", options.default_place);
    }
    place = MR_TRY(ParsePlace(url.bucket, url.key));
  }
  return std::unique_ptr<Provisioner>(new Provisioner(std::move(options), std::move(place)));
}

Result<VolumeLocation> Provisioner::PlaceFor(const std::map<std::string, std::string>& own) const {
  if (Value(own, kOwnBucketParameter) == "true") {
    const std::string prefix = Value(own, kBucketPrefixParameter);
    return VolumeLocation{.bucket_prefix = prefix.empty() ? kDefaultBucketPrefix : prefix};
  }
  const std::string bucket = Value(own, kBucketParameter);
  if (!bucket.empty()) return ParsePlace(bucket, Value(own, kPrefixParameter));
  if (!default_place_) {
    return Fail(Code::kInvalidArgument,
                "the StorageClass says nowhere where volumes go: set its parameter bucketName, or bucketPerVolume: "
                "\"true\", or give the driver a default with --place");
  }
  VolumeLocation place = *default_place_;
  if (const std::string prefix = Value(own, kPrefixParameter); !prefix.empty()) {
    place = MR_TRY(ParsePlace(place.bucket, place.prefix + prefix));
  }
  return place;
}

Result<Provisioner::OpenedRoot> Provisioner::OpenRoot(VolumeRoot root, const Secrets& secrets) const {
  OpenedRoot opened{.root = std::move(root)};
  opened.connection = MR_TRY(options_.connect(secrets));
  opened.store =
      MR_TRY(opened.connection->OpenStore({.scheme = object::Url::Scheme::kS3, .bucket = opened.root.bucket}));
  return opened;
}

Result<std::optional<Provisioner::StoredVolumeRecord>> Provisioner::ReadRecord(const OpenedRoot& at, RootKind kind,
                                                                               const object::Call& call) const {
  const std::string key = at.root.mark_key(kind);
  auto content = object::GetAll(*at.store, key, kMaxMarkBytes, call);
  if (!content && content.error().code() == Code::kNotFound) return std::nullopt;  // the bucket does not exist
  if (!content) return Fail(content.error());
  if (!*content) return std::nullopt;
  VolumeRecord mark = MR_TRY(VolumeRecord::Parse((*content)->bytes, fmt::format("s3://{}/{}", at.root.bucket, key)));
  if (mark.id != at.root.id() || mark.driver != options_.driver) {
    return Fail(Code::kPreconditionFailed, "{} belongs to the volume {} of the driver {}", at.root.id(), mark.id,
                mark.driver);
  }
  return StoredVolumeRecord{.mark = std::move(mark), .etag = (*content)->info.etag};
}

Result<std::optional<VolumeRecord>> Provisioner::FindRecord(const std::string& id, RootKind kind,
                                                            const Secrets& secrets, const object::Call& call) const {
  auto root = ParseRootId(id);
  if (!root) return std::nullopt;
  const OpenedRoot at = MR_TRY(OpenRoot(*std::move(root), secrets));
  auto stored = MR_TRY(ReadRecord(at, kind, call));
  if (!stored || stored->mark.state == VolumeState::kDeleting) return std::nullopt;
  return std::move(stored->mark);
}

Status Provisioner::CreateRecord(const OpenedRoot& at, RootKind kind, const VolumeRecord& mark,
                                 const object::Call& call) const {
  if (at.root.own_bucket()) {
    auto service = MR_TRY(at.connection->OpenService());
    Status made = service->MakeBucket(at.root.bucket, call);
    if (!made && made.error().code() != Code::kAlreadyExists) return made;
    // An empty bucket is what a call that was cut off leaves; any other is somebody's.
    if (MR_TRY(HasContent(*at.store, "", call))) {
      return Fail(Code::kAlreadyExists, "the bucket {} has content that no volume owns", at.root.bucket);
    }
  } else if (MR_TRY(HasContent(*at.store, at.root.prefix, call))) {
    return Fail(Code::kAlreadyExists, "{} has content that no volume owns", at.root.id());
  }
  MR_TRY(object::Put(*at.store, at.root.mark_key(kind), AsBytes(mark.ToJson()), {.if_none_match = true}, call));
  return {};
}

Result<VolumeRecord> Provisioner::CopySourceContent(const OpenedRoot& at, RootKind kind, VolumeRecord mark,
                                                    const Secrets& secrets, const object::Call& call) const {
  if (mark.state != VolumeState::kCopying) return mark;
  auto source_root = ParseRootId(mark.source);
  if (!source_root) return Fail(Code::kNotFound, "{} is no volume or snapshot of this driver", mark.source);
  const OpenedRoot source = MR_TRY(OpenRoot(*std::move(source_root), secrets));
  const std::uint64_t bytes = MR_TRY(CopyContent({*source.store, source.root.bucket, source.root.data_prefix()},
                                                 {*at.store, at.root.bucket, at.root.data_prefix()}, call));
  mark.state = VolumeState::kReady;
  if (kind == RootKind::kSnapshot) mark.capacity_bytes = static_cast<std::int64_t>(bytes);
  MR_TRY(object::Put(*at.store, at.root.mark_key(kind), AsBytes(mark.ToJson()), {}, call));
  return mark;
}

Result<VolumeRecord> Provisioner::CreateRoot(const OpenedRoot& at, RootKind kind, VolumeRecord wanted,
                                             const Secrets& secrets,
                                             const std::function<Status(const VolumeRecord&)>& check,
                                             const object::Call& call) const {
  auto stored = MR_TRY(ReadRecord(at, kind, call));
  if (stored && stored->mark.state == VolumeState::kDeleting) {
    return Fail(Code::kBusy, "{} is being deleted", at.root.id());
  }
  if (stored) {
    MR_TRY(check(stored->mark));
    return CopySourceContent(at, kind, std::move(stored->mark), secrets, call);
  }
  if (!wanted.source.empty()) MR_TRY(CheckSource(wanted, secrets, call));
  wanted.id = at.root.id();
  wanted.driver = options_.driver;
  wanted.state = wanted.source.empty() ? VolumeState::kReady : VolumeState::kCopying;
  wanted.created_unix_seconds =
      std::chrono::duration_cast<std::chrono::seconds>(options_.clock->Wall().time_since_epoch()).count();
  MR_TRY(CreateRecord(at, kind, wanted, call));
  options_.log.Info(kind == RootKind::kVolume ? "a volume is made" : "a snapshot is made",
                    {{"id", wanted.id}, {"name", wanted.name}, {"source", wanted.source}});
  return CopySourceContent(at, kind, std::move(wanted), secrets, call);
}

Status Provisioner::CheckSource(const VolumeRecord& mark, const Secrets& secrets, const object::Call& call) const {
  const auto source = MR_TRY(FindRecord(mark.source, mark.source_kind, secrets, call));
  if (!source) return Fail(Code::kNotFound, "there is no volume or snapshot {}", mark.source);
  if (source->state != VolumeState::kReady) return Fail(Code::kUnavailable, "{} is not complete yet", mark.source);
  return {};
}

Result<VolumeRecord> Provisioner::CreateVolume(const VolumeRequest& request, const object::Call& call) {
  const std::map<std::string, std::string> own = OwnParameters(request.parameters);
  MR_TRY(CheckParameters(own));
  MR_TRY(CheckSize(request));
  const VolumeLocation place = MR_TRY(PlaceFor(own));
  VolumeRoot root = MR_TRY(place.RootOf(RootKind::kVolume, request.name));
  const OpenedRoot at = MR_TRY(OpenRoot(std::move(root), request.secrets));
  auto check = [&](const VolumeRecord& mark) -> Status {
    const bool fits = mark.capacity_bytes >= request.required_bytes &&
                      (request.limit_bytes == 0 || mark.capacity_bytes <= request.limit_bytes);
    if (mark.name == request.name && mark.parameters == own && mark.source == request.source && fits) return {};
    return Fail(Code::kAlreadyExists, "the volume {} exists with {}", mark.id,
                !fits                           ? "another size"
                : mark.name != request.name     ? "another name"
                : mark.source != request.source ? "another source"
                                                : "other parameters of its StorageClass");
  };
  if (own.contains(kCapacityParameter)) {
    const std::int64_t left = MR_TRY(AvailableCapacity(own, call));
    const bool exists = MR_TRY(ReadRecord(at, RootKind::kVolume, call)).has_value();
    if (!exists && request.required_bytes > left) {
      return Fail(Code::kNoSpace, "the StorageClass has {} bytes left, and the volume needs {}", left,
                  request.required_bytes);
    }
  }
  return CreateRoot(at, RootKind::kVolume,
                    {.name = request.name,
                     .capacity_bytes = request.required_bytes != 0 ? request.required_bytes : request.limit_bytes,
                     .source = request.source,
                     .source_kind = request.source_kind,
                     .parameters = own},
                    request.secrets, check, call);
}

Status Provisioner::DeleteRoot(const std::string& id, RootKind kind, const Secrets& secrets,
                               const object::Call& call) const {
  auto root = ParseRootId(id);
  if (!root) {
    options_.log.Info("nothing is deleted: this driver made no such volume", {{"id", id}});
    return {};
  }
  const OpenedRoot at = MR_TRY(OpenRoot(*std::move(root), secrets));
  auto stored = MR_TRY(ReadRecord(at, kind, call));
  if (!stored) {
    options_.log.Info("nothing is deleted: this volume has no ownership mark", {{"id", id}});
    return {};
  }
  const std::string key = at.root.mark_key(kind);
  if (Value(stored->mark.parameters, kOnDeleteParameter) == "retain") {
    options_.log.Info("a volume's content is kept; its mark is deleted", {{"id", id}});
    return object::Delete(*at.store, key, call);
  }
  if (stored->mark.state != VolumeState::kDeleting) {
    stored->mark.state = VolumeState::kDeleting;
    MR_TRY(object::Put(*at.store, key, AsBytes(stored->mark.ToJson()), {.if_match = stored->etag}, call));
  }
  MR_TRY(DeleteContent({*at.store, at.root.bucket, at.root.data_prefix()}, call));
  MR_TRY(object::Delete(*at.store, key, call));
  options_.log.Info("a volume and its content are deleted", {{"id", id}, {"name", stored->mark.name}});
  if (!at.root.own_bucket()) return {};
  auto service = MR_TRY(at.connection->OpenService());
  Status removed = service->RemoveBucket(at.root.bucket, call);
  if (!removed && removed.error().code() == Code::kNotEmpty) {
    options_.log.Warning("the bucket of a deleted volume stays: it has content that the volume did not own",
                         {{"bucket", at.root.bucket}});
    return {};
  }
  return removed;
}

Status Provisioner::DeleteVolume(const std::string& id, const Secrets& secrets, const object::Call& call) {
  return DeleteRoot(id, RootKind::kVolume, secrets, call);
}

Result<std::optional<VolumeRecord>> Provisioner::FindVolume(const std::string& id, const Secrets& secrets,
                                                            const object::Call& call) {
  return FindRecord(id, RootKind::kVolume, secrets, call);
}

Result<VolumeRecord> Provisioner::ExpandVolume(const std::string& id, std::int64_t required_bytes,
                                               std::int64_t limit_bytes, const Secrets& secrets,
                                               const object::Call& call) {
  auto root = ParseRootId(id);
  if (!root) return Fail(Code::kNotFound, "there is no volume {}", id);
  const OpenedRoot at = MR_TRY(OpenRoot(*std::move(root), secrets));
  auto stored = MR_TRY(ReadRecord(at, RootKind::kVolume, call));
  if (!stored || stored->mark.state == VolumeState::kDeleting)
    return Fail(Code::kNotFound, "there is no volume {}", id);
  VolumeRecord& mark = stored->mark;
  if (limit_bytes != 0 && std::max(mark.capacity_bytes, required_bytes) > limit_bytes) {
    return Fail(Code::kInvalidArgument, "the volume has {} bytes and needs {}; the limit is {}", mark.capacity_bytes,
                required_bytes, limit_bytes);
  }
  if (mark.capacity_bytes == 0 || mark.capacity_bytes >= required_bytes) return mark;
  mark.capacity_bytes = required_bytes;
  MR_TRY(object::Put(*at.store, at.root.mark_key(RootKind::kVolume), AsBytes(mark.ToJson()), {.if_match = stored->etag},
                     call));
  return mark;
}

Result<VolumeRecord> Provisioner::CreateSnapshot(const SnapshotRequest& request, const object::Call& call) {
  auto source = ParseRootId(request.volume_id);
  const auto volume = MR_TRY(FindRecord(request.volume_id, RootKind::kVolume, request.secrets, call));
  if (!source || !volume) return Fail(Code::kNotFound, "there is no volume {}", request.volume_id);
  const std::string prefix = Value(volume->parameters, kBucketPrefixParameter);
  const VolumeLocation place = PlaceOf(*source, prefix.empty() ? kDefaultBucketPrefix : prefix);
  VolumeRoot root = MR_TRY(place.RootOf(RootKind::kSnapshot, request.name));
  const OpenedRoot at = MR_TRY(OpenRoot(std::move(root), request.secrets));
  auto check = [&](const VolumeRecord& mark) -> Status {
    if (mark.name == request.name && mark.source == request.volume_id) return {};
    return Fail(Code::kAlreadyExists, "the snapshot {} exists; it is of the volume {}", mark.id, mark.source);
  };
  return CreateRoot(at, RootKind::kSnapshot, {.name = request.name, .source = request.volume_id}, request.secrets,
                    check, call);
}

Status Provisioner::DeleteSnapshot(const std::string& id, const Secrets& secrets, const object::Call& call) {
  return DeleteRoot(id, RootKind::kSnapshot, secrets, call);
}

Result<std::optional<VolumeRecord>> Provisioner::FindSnapshot(const std::string& id, const Secrets& secrets,
                                                              const object::Call& call) {
  return FindRecord(id, RootKind::kSnapshot, secrets, call);
}

Result<VolumePage> Provisioner::ListRecords(const VolumeLocation& place, RootKind kind, const std::string& source,
                                            const std::string& token, int most, const Secrets& secrets,
                                            const object::Call& call) const {
  if (!token.empty() && !token.starts_with(kTokenBegin)) {
    return Fail(Code::kInvalidArgument, "\"{}\" is not a token that a listing gave", token);
  }
  const std::string folder = place.FolderOf(kind);
  const OpenedRoot at = MR_TRY(OpenRoot({.bucket = place.bucket}, secrets));
  const std::string after = token.empty() ? "" : folder + token.substr(kTokenBegin.size()) + "/";
  VolumePage page;
  Status read;
  auto add_roots = [&](const object::ListPage& listed) -> Status {
    for (const std::string& prefix : listed.common_prefixes) {
      if (prefix <= after) continue;  // S3 gives the prefix again whose keys lie behind `after`
      const OpenedRoot root{
          .root = {.bucket = place.bucket, .prefix = prefix}, .connection = at.connection, .store = at.store};
      auto stored = ReadRecord(root, kind, call);
      if (!stored && stored.error().code() != Code::kCorrupt && stored.error().code() != Code::kPreconditionFailed) {
        return Fail(stored.error());
      }
      if (!stored || !*stored || (*stored)->mark.state == VolumeState::kDeleting) continue;  // not a volume of ours
      if (!source.empty() && (*stored)->mark.source != source) continue;
      if (most > 0 && page.marks.size() == static_cast<std::size_t>(most)) {
        const VolumeRoot last = *ParseRootId(page.marks.back().id);
        page.next =
            fmt::format("{}{}", kTokenBegin, last.prefix.substr(folder.size(), last.prefix.size() - folder.size() - 1));
        return {};
      }
      page.marks.push_back(std::move((*stored)->mark));
    }
    return {};
  };
  MR_TRY(object::ListAll(
      *at.store, {.prefix = folder, .delimiter = "/", .start_after = after},
      [&](const object::ListPage& listed) {
        read = add_roots(listed);
        return read.has_value() && page.next.empty();
      },
      call));
  MR_TRY(std::move(read));
  return page;
}

Result<VolumePage> Provisioner::ListVolumes(const std::string& token, int most, const object::Call& call) {
  return ListRecords(*default_place_, RootKind::kVolume, "", token, most, {}, call);
}

Result<VolumePage> Provisioner::ListSnapshots(const std::string& volume_id, const std::string& token, int most,
                                              const Secrets& secrets, const object::Call& call) {
  if (volume_id.empty()) return ListRecords(*default_place_, RootKind::kSnapshot, "", token, most, secrets, call);
  const auto root = ParseRootId(volume_id);
  if (!root || root->own_bucket()) return VolumePage{};
  return ListRecords(PlaceOf(*root, ""), RootKind::kSnapshot, volume_id, token, most, secrets, call);
}

Result<std::int64_t> Provisioner::AvailableCapacity(const std::map<std::string, std::string>& parameters,
                                                    const object::Call& call) {
  const std::map<std::string, std::string> own = OwnParameters(parameters);
  const std::string capacity = Value(own, kCapacityParameter);
  if (capacity.empty()) return kUnlimited;
  std::int64_t left = MR_TRY(ParseCapacity(capacity));
  const VolumeLocation place = MR_TRY(PlaceFor(own));
  if (place.bucket.empty()) {
    return Fail(Code::kInvalidArgument, "the parameter capacity needs volumes in one bucket: set bucketName");
  }
  const VolumePage all = MR_TRY(ListRecords(place, RootKind::kVolume, "", "", /*most=*/0, {}, call));
  for (const VolumeRecord& mark : all.marks) left -= mark.capacity_bytes;
  return std::max<std::int64_t>(left, 0);
}

}  // namespace millrace::csi
