#include "millrace/checkpoint/convert/quantized_model.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/base/files/managed_folder.h"
#include "millrace/base/files/mapped_file.h"
#include "millrace/base/files/trusted_folder.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/checkpoint/convert/export.h"
#include "millrace/checkpoint/convert/huggingface/hf_folder.h"
#include "millrace/checkpoint/convert/tensors/quantized_names.h"
#include "millrace/checkpoint/format/half.h"
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
  if (config == nullptr)
    return Fail(Code::kNotFound, "{} has no config.json; copy that of the model there", source.name());
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
  return Fail(Code::kInvalidArgument,
              "{} is quantized as {}, not as {}; name the other, or take a model that is not quantized", source.name(),
              QuantizationName(*stored), QuantizationName(kind));
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

struct MappedTensor {
  TensorMeta meta;
  std::span<const std::uint8_t> bytes;
};

class FolderMap {
 public:
  explicit FolderMap(const fs::path& folder) : folder_(folder) {}

  Result<std::shared_ptr<const engine::QuantizedWeights>> Find() {
    MR_TRY(MapFiles());
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    const ModelNames in_checkpoint(MR_TRY(Config()), names);
    auto weights = std::make_shared<engine::QuantizedWeights>();
    for (const std::string& name : names) {
      const auto stem = [&](std::string_view suffix) { return name.substr(0, name.size() - suffix.size()); };
      std::shared_ptr<const engine::QuantizedMatrix> matrix;
      std::string weight;
      if (name.ends_with(kFp4StateSuffix)) {
        return Fail(Code::kUnsupported, "{}: {} is quantized as fp4; {} are read", folder_.string(),
                    stem(kFp4StateSuffix), engine::kQuantizationNames);
      }
      if (name.ends_with(kNf4StateSuffix)) {
        weight = stem(kNf4StateSuffix);
        matrix = MR_TRY(Nf4(weight, name));
      } else if (name.ends_with(kRowScalesSuffix)) {
        weight = stem(kRowScalesSuffix) + ".weight";
        matrix = MR_TRY(Int8(weight, name));
      } else if (name.ends_with(".weight" + std::string(kFp8ScalesSuffix))) {
        weight = stem(kFp8ScalesSuffix);
        matrix = MR_TRY(Fp8(weight, name));
      } else {
        continue;
      }
      weights->emplace(in_checkpoint(weight).value_or(weight), std::move(matrix));
    }
    return std::shared_ptr<const engine::QuantizedWeights>(std::move(weights));
  }

 private:
  Status MapFiles() {
    std::error_code failed;
    std::vector<fs::path> paths;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_, failed)) {
      if (entry.path().extension() == ".safetensors") paths.push_back(entry.path());
    }
    if (failed) return Fail(ErrnoError(failed.value(), "listing " + folder_.string()));
    for (const fs::path& path : paths) {
      const UniqueFd file = MR_TRY(OpenFile(path, O_RDONLY));
      const ByteSpan bytes = files_->emplace_back(MR_TRY(MappedFile::Open(file.get(), path.string()))).bytes();
      constexpr std::size_t kLength = 8;
      const ByteSpan first = bytes.first(std::min(kLength, bytes.size()));
      const std::uint64_t header = MR_TRY(ParseSafetensorsLength(first, bytes.size(), path.string()));
      const auto entries =
          MR_TRY(ParseSafetensorsHeader(AsText(bytes.subspan(kLength, header)), bytes.size(), path.string()));
      for (const SafetensorsEntry& entry : entries) {
        const ByteSpan content = bytes.subspan(entry.offset, entry.meta.bytes());
        tensors_[entry.name] = {entry.meta, {reinterpret_cast<const std::uint8_t*>(content.data()), content.size()}};
      }
    }
    return {};
  }

  Result<Json> Config() const {
    const fs::path path = folder_ / "config.json";
    return ParseJson(MR_TRY(ReadFile(path, kMaxConfigBytes)), path.string());
  }

  /// Returns a part of a weight, of this type and number of elements.
  Result<std::span<const std::uint8_t>> Part(const std::string& name, DType dtype, std::uint64_t elements) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return Fail(Code::kCorrupt, "{} has no {}", folder_.string(), name);
    const TensorMeta& meta = found->second.meta;
    if (meta.dtype != dtype || meta.elements() != elements) {
      return Fail(Code::kCorrupt, "{}: {} has {} elements of {}, not {} of {}", folder_.string(), name, meta.elements(),
                  DTypeName(meta.dtype), elements, DTypeName(dtype));
    }
    return found->second.bytes;
  }
  Result<std::vector<float>> Floats(const std::string& name, std::uint64_t elements) const {
    const auto bytes = MR_TRY(Part(name, DType::kF32, elements));
    std::vector<float> numbers(elements);
    std::memcpy(numbers.data(), bytes.data(), bytes.size());
    return numbers;
  }

  /// As Floats(), also of a model's own type.
  Result<std::vector<float>> Scales(const std::string& name, std::uint64_t elements) const {
    const DType dtype = tensors_.at(name).meta.dtype;
    if (dtype != DType::kBF16 && dtype != DType::kF16) return Floats(name, elements);
    const auto bytes = MR_TRY(Part(name, dtype, elements));
    std::vector<float> numbers;
    for (std::size_t i = 0; i < bytes.size(); i += 2) {
      const auto bits = static_cast<std::uint16_t>(bytes[i] | bytes[i + 1] << 8);
      numbers.push_back(dtype == DType::kF16 ? HalfToFloat(bits) : Bf16ToFloat(bits));
    }
    return numbers;
  }

  Result<std::shared_ptr<const engine::QuantizedMatrix>> Nf4(const std::string& weight, const std::string& state_name) {
    const MappedTensor& stored = tensors_.at(state_name);
    if (stored.meta.dtype != DType::kU8) return Fail(Code::kCorrupt, "{}: {} is no text", folder_.string(), state_name);
    const QuantState state = MR_TRY(ParseState(AsText(std::as_bytes(stored.bytes)), state_name));
    const auto elements = static_cast<std::uint64_t>(state.shape[0]) * static_cast<std::uint64_t>(state.shape[1]);
    const auto quotient = [](std::uint64_t count, int block) {
      return (count + static_cast<std::uint64_t>(block) - 1) / static_cast<std::uint64_t>(block);
    };
    const std::uint64_t scales = quotient(elements, state.block);
    engine::QuantizedMatrix::Nf4 nf4{.codes = MR_TRY(Part(weight, DType::kU8, quotient(elements, 2))),
                                     .block = state.block,
                                     .nested = state.scale_offset.has_value()};
    const std::vector<float> map = MR_TRY(Floats(weight + std::string(kMapSuffix), nf4.map.size()));
    std::ranges::copy(map, nf4.map.begin());
    nf4.scales = MR_TRY(Part(weight + std::string(kScalesSuffix), nf4.nested ? DType::kU8 : DType::kF32, scales));
    if (nf4.nested) {
      nf4.scale_map = MR_TRY(Floats(weight + std::string(kScaleMapSuffix), 256));
      nf4.scale_scales = MR_TRY(Floats(weight + std::string(kScaleScalesSuffix), quotient(scales, state.scale_block)));
      nf4.scale_block = state.scale_block;
      nf4.scale_offset = *state.scale_offset;
    }
    return std::make_shared<const engine::QuantizedMatrix>(state.shape[0], state.shape[1], std::move(nf4), files_);
  }

  /// Returns what the matrix is whose scales these are.
  Result<TensorMeta> MatrixOf(const std::string& weight, const std::string& scales) const {
    const auto found = tensors_.find(weight);
    if (found != tensors_.end() && found->second.meta.shape.size() == 2) return found->second.meta;
    return Fail(Code::kCorrupt, "{}: {} belongs to no matrix", folder_.string(), scales);
  }

  Result<std::shared_ptr<const engine::QuantizedMatrix>> Int8(const std::string& weight, const std::string& scales) {
    const TensorMeta meta = MR_TRY(MatrixOf(weight, scales));
    const auto codes = MR_TRY(Part(weight, DType::kI8, meta.elements()));
    auto of_rows = MR_TRY(Floats(scales, static_cast<std::uint64_t>(meta.shape[0])));
    return std::make_shared<const engine::QuantizedMatrix>(
        meta.shape[0], meta.shape[1], engine::QuantizedMatrix::Int8{.codes = codes, .scales = std::move(of_rows)},
        files_);
  }

  Result<std::shared_ptr<const engine::QuantizedMatrix>> Fp8(const std::string& weight, const std::string& scales) {
    const TensorMeta meta = MR_TRY(MatrixOf(weight, scales));
    const auto rows = static_cast<std::uint64_t>(meta.shape[0]);
    const auto codes = MR_TRY(Part(weight, DType::kF8E4M3, meta.elements()));
    const std::uint64_t count = tensors_.at(scales).meta.elements();
    auto of_rows = MR_TRY(Scales(scales, count == 1 ? 1 : rows));
    if (count == 1) of_rows.resize(rows, of_rows[0]);  // one for the matrix
    return std::make_shared<const engine::QuantizedMatrix>(
        meta.shape[0], meta.shape[1], engine::QuantizedMatrix::Fp8{.codes = codes, .scales = std::move(of_rows)},
        files_);
  }

  const fs::path folder_;
  std::map<std::string, MappedTensor> tensors_;
  std::shared_ptr<std::vector<MappedFile>> files_ = std::make_shared<std::vector<MappedFile>>();
};

}  // namespace

Result<fs::path> DefaultQuantizedFolder() { return MR_TRY(DefaultCacheFolder("XDG_CACHE_HOME")) / "quantized"; }

Result<std::shared_ptr<const engine::QuantizedWeights>> MapQuantizedWeights(const fs::path& folder) {
  return FolderMap(folder).Find();
}

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
