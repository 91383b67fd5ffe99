#include "millrace/checkpoint/convert/quantized_model.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <optional>
#include <string>
#include <system_error>

#include "millrace/base/files/managed_folder.h"
#include "millrace/base/files/trusted_folder.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/checkpoint/convert/export.h"
#include "millrace/checkpoint/convert/mapped_weights.h"
#include "millrace/checkpoint/convert/tensors/quantized_names.h"
#include "millrace/object/location.h"

namespace millrace::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Part of the folders' names. It changes if the same weights get other codes.
constexpr std::string_view kFormat = "1";
constexpr FolderRole kRole = {.what = "the folder of quantized models", .cure = "set XDG_CACHE_HOME to another place"};

/// Returns how the source's weights are quantized; nothing if they are not.
Result<std::optional<engine::Quantization>> QuantizationOf(const ModelSource& source) {
  const Json* config = JsonFind(source.reader().manifest().meta, kMetaModelConfig);
  if (config == nullptr) return Fail(Code::kNotFound, "{} has no config.json", source.name());
  return StoredQuantization(*config, source.name());
}

Result<UniqueFd> Lock(const fs::path& path) {
  UniqueFd lock = MR_TRY(OpenFile(path, O_RDWR | O_CREAT, 0600));
  while (::flock(lock.get(), LOCK_EX) != 0) {
    if (errno != EINTR) return Fail(ErrnoError(errno, "locking " + path.string()));
  }
  return lock;
}

Status Remove(const fs::path& folder) {
  std::error_code failed;
  fs::remove_all(folder, failed);
  if (failed) return Fail(ErrnoError(failed.value(), "removing " + folder.string()));
  return {};
}

/// Returns whether the source is quantized as `kind` already. Fails if it is in another way.
Result<bool> IsStoredAs(const ModelSource& source, engine::Quantization kind) {
  const std::optional<engine::Quantization> stored = MR_TRY(QuantizationOf(source));
  if (!stored || *stored == kind) return stored.has_value();
  return Fail(Code::kInvalidArgument, "{} is quantized as {}, not as {}", source.name(), QuantizationName(*stored),
              QuantizationName(kind));
}

/// Makes the model's folder.
Status Fill(const fs::path& folder, object::Connection& connection, const ModelSource& source, bool is_stored,
            engine::Quantization kind, MemoryBudget& budget, const object::Call& call) {
  ExportOptions options;
  if (!is_stored) options.quantization = kind;
  const object::Location to = MR_TRY(object::Locate(connection, folder.string()));
  (void)MR_TRY(Export(source.reader(), to, budget, options, call));
  return {};
}

/// A folder that nobody else uses, and its removal.
class FolderForOneLoad {
 public:
  FolderForOneLoad(fs::path folder, UniqueFd lock) : folder_(std::move(folder)), lock_(std::move(lock)) {}
  FolderForOneLoad(const FolderForOneLoad&) = delete;
  FolderForOneLoad& operator=(const FolderForOneLoad&) = delete;
  ~FolderForOneLoad() { (void)Remove(folder_); }  // if it fails, the next load tries again

 private:
  const fs::path folder_;
  const UniqueFd lock_;
};

}  // namespace

std::optional<engine::Quantization> QuantizedWhileTraining(const Manifest& adapter) {
  const Json* train = JsonFind(adapter.meta, "train");
  if (train == nullptr) return std::nullopt;
  return engine::ParseQuantization(JsonString(*train, "base_quantization").value_or(""));
}

Result<fs::path> DefaultQuantizedFolder() { return MR_TRY(DefaultCacheFolder("XDG_CACHE_HOME")) / "quantized"; }

Result<QuantizedModel> OpenQuantizedModel(object::Connection& connection, const ModelSource& source,
                                          engine::Quantization kind, const fs::path& cache, MemoryBudget& budget,
                                          const Logger& log, const object::Call& call) {
  const bool is_stored = MR_TRY(IsStoredAs(source, kind));
  const std::string version = fmt::format("{} {} {}", kFormat, QuantizationName(kind), MR_TRY(source.Version(call)));
  const std::string name = HexEncode(Sha256(AsBytes(version))).substr(0, 32);  // 128 bits do not collide
  (void)MR_TRY(OpenTrustedFolder(cache, kRole, MissingFolder::kMake));
  const fs::path folder = cache / name;
  const UniqueFd lock = MR_TRY(Lock(cache / (name + ".lock")));
  if (!fs::exists(folder)) {
    const fs::path unfinished = cache / (name + ".unfinished");
    MR_TRY(Remove(unfinished));
    log.Info(is_stored ? "copying the quantized model to this machine" : "quantizing the model",
             {{"model", source.name()}, {"kind", QuantizationName(kind)}, {"folder", folder.string()}});
    MR_TRY(Fill(unfinished, connection, source, is_stored, kind, budget, call));
    std::error_code failed;
    fs::rename(unfinished, folder, failed);
    if (failed) return Fail(ErrnoError(failed.value(), "renaming " + unfinished.string()));
    MR_TRY(SyncDirectory(cache));
  }
  auto weights = MR_TRY(MapQuantizedWeights(folder));
  return QuantizedModel{folder, std::move(weights)};
}

Result<QuantizedModel> QuantizeForOneLoad(object::Connection& connection, const ModelSource& source,
                                          engine::Quantization kind, const fs::path& cache, MemoryBudget& budget,
                                          const Logger& log, const object::Call& call) {
  const bool is_stored = MR_TRY(IsStoredAs(source, kind));
  (void)MR_TRY(OpenTrustedFolder(cache, kRole, MissingFolder::kMake));
  const fs::path folder = cache / "one-load";
  UniqueFd lock = MR_TRY(Lock(cache / "one-load.lock"));
  MR_TRY(Remove(folder));
  log.Info("quantizing the model", {{"model", source.name()}, {"kind", QuantizationName(kind)}});
  auto holder = std::make_shared<const FolderForOneLoad>(folder, std::move(lock));
  MR_TRY(Fill(folder, connection, source, is_stored, kind, budget, call));
  auto weights = MR_TRY(MapQuantizedWeights(folder));
  return QuantizedModel{folder, std::move(weights), std::move(holder)};
}

}  // namespace millrace::checkpoint
