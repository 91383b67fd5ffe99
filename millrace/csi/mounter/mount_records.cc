#include "millrace/csi/mounter/mount_records.h"

#include <system_error>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/json.h"

namespace millrace::csi {
namespace {

constexpr char kFormat[] = "millrace-csi-mount";
constexpr char kFile[] = "mount.json";
constexpr std::uint64_t kMaxBytes = 64 * kKiB;

std::optional<MountRecord> ReadRecord(const std::filesystem::path& path) {
  auto text = ReadFile(path, kMaxBytes);
  if (!text) return std::nullopt;
  auto json = ParseJson(*text, path.string());
  if (!json || !json->is_object() || json->value("format", "") != kFormat) return std::nullopt;
  return MountRecord{.volume = json->value("volume", ""),
                     .target = json->value("target", ""),
                     .fingerprint = json->value("fingerprint", ""),
                     .driver_identity = json->value("driver_identity", false),
                     .memory = json->value("memory", std::uint64_t{0})};
}

}  // namespace

std::vector<MountRecord> MountRecords::All() const {
  std::vector<MountRecord> records;
  std::error_code error;
  for (const auto& folder : std::filesystem::directory_iterator(folder_, error)) {
    if (auto record = ReadRecord(folder.path() / kFile)) records.push_back(*std::move(record));
  }
  return records;
}

std::optional<MountRecord> MountRecords::Read(const std::string& target) const {
  auto record = ReadRecord(FolderOf(target) / kFile);
  if (record && record->target != target) return std::nullopt;
  return record;
}

Status MountRecords::Write(const MountRecord& record) const {
  const std::filesystem::path folder = FolderOf(record.target);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return Fail(ErrnoError(error.value(), "cannot make " + folder.string()));
  const Json json = {{"format", kFormat},
                     {"volume", record.volume},
                     {"target", record.target},
                     {"fingerprint", record.fingerprint},
                     {"driver_identity", record.driver_identity},
                     {"memory", record.memory}};
  return WriteFileAtomic(folder / kFile, AsBytes(DumpJson(json)), 0600);
}

void MountRecords::RemoveRecord(const std::string& target) const {
  std::error_code error;
  std::filesystem::remove(FolderOf(target) / kFile, error);
}

void MountRecords::Remove(const std::string& target) const {
  std::error_code error;
  std::filesystem::remove_all(FolderOf(target), error);
}

std::filesystem::path MountRecords::FolderOf(const std::string& target) const { return folder_ / ShortHash(target); }

}  // namespace millrace::csi
