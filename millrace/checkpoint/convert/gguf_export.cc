#include "millrace/checkpoint/convert/tensors/export_target.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "millrace/checkpoint/convert/tensors/group_view.h"
#include "millrace/checkpoint/convert/tensors/transpose.h"
#include "millrace/checkpoint/format/half.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/gguf/gguf_byte_level.h"
#include "millrace/checkpoint/gguf/gguf_header.h"
#include "millrace/checkpoint/gguf/gguf_model.h"
#include "millrace/checkpoint/gguf/gguf_names.h"
#include "millrace/checkpoint/gguf/gguf_vocabulary.h"
#include "millrace/checkpoint/gguf/rope_factors.h"
#include "millrace/engine/config/families.h"
#include "millrace/transfer/stream/multipart_writer.h"

namespace millrace::checkpoint {
namespace {

/// Elements that are converted at a time, at least. A guess: 256 KiB of floats stay in the second-level cache.
constexpr std::uint64_t kStepElements = 64 * kKiB;
constexpr std::uint64_t kMaxVocabulary = 64 * kMiB;  ///< of a tokenizer's file; a guess
constexpr std::string_view kRopeFactors = "rope_freqs.weight";

/// general.file_type: llama.cpp's enumeration llama_ftype.
std::int64_t FileType(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
      return 0;
    case GgmlType::kF16:
      return 1;
    case GgmlType::kQ4_0:
      return 2;
    case GgmlType::kQ8_0:
      return 7;
    case GgmlType::kBF16:
      return 32;
    default:
      return 0;  // no other type is written
  }
}

/// Returns the GGUF type with the same elements.
Result<GgmlType> TypeOf(DType dtype, std::string_view name) {
  if (dtype == DType::kF32) return GgmlType::kF32;
  if (dtype == DType::kF16) return GgmlType::kF16;
  if (dtype == DType::kBF16) return GgmlType::kBF16;
  return Fail(Code::kUnsupported, "{} is of type {}; F32, F16 and BF16 can be written to GGUF files", name,
              DTypeName(dtype));
}

/// A tensor of the checkpoint and of the file.
struct WrittenTensor {
  std::string name;  ///< in the checkpoint; empty: `values` are written
  DType dtype = DType::kF32;
  std::uint64_t head_rows = 0;  ///< rows of a head, if they are turned
  bool is_transposed = false;   ///< the checkpoint has the transpose
  std::vector<float> values;
};

class GgufExport {
 public:
  GgufExport(TensorStream& stream, const ExportTarget& target, std::optional<GgmlType> type,
             const std::map<std::string, std::string>& files)
      : stream_(stream), target_(target), type_(type), files_(files) {}

  Result<ExportResult> Run() {
    const Manifest& manifest = stream_.reader().manifest();
    const std::string& name = stream_.reader().name();
    const auto tensors = TensorsBelow(manifest, kModelGroup);
    const Json* config = JsonFind(manifest.meta, kMetaModelConfig);
    if (tensors.empty() || config == nullptr) {
      return Fail(Code::kNotFound,
                  "{} has no model to export; name a checkpoint that has weights and the config.json of a model", name);
    }
    config_ = MR_TRY(engine::ParseModelConfig(*config, name));
    // llama.cpp reads Mistral's models as Llama's.
    architecture_ = config_->family() == "mistral" ? kGgufLlama : config_->family();
    if (!IsGgufArchitecture(architecture_) || !config_->generates()) {
      return Fail(Code::kUnsupported,
                  "{}: a {} model cannot be exported to a GGUF file; those of Llama, Mistral, Qwen2, Qwen3 and GPT-2 "
                  "that predict tokens can",
                  name, config_->family());
    }
    MR_TRY(Describe(*config, name));
    MR_TRY(PlanTensors(tensors));
    MR_TRY(AddVocabulary(manifest));
    return Write();
  }

 private:
  void Set(std::string_view key, GgufValue value) {
    metadata_[fmt::format("{}.{}", architecture_, key)] = std::move(value);
  }

  Status Describe(const Json& config, const std::string& name) {
    const engine::ModelSizes sizes = config_->sizes();
    metadata_["general.architecture"] = architecture_;
    metadata_["general.name"] = std::string("millrace");
    metadata_["general.alignment"] = std::int64_t{32};
    metadata_["general.quantization_version"] = std::int64_t{2};  // GGML_QNT_VERSION
    Set("vocab_size", sizes.vocab_size);
    Set("context_length", sizes.max_positions);
    Set("embedding_length", sizes.hidden_size);
    Set("feed_forward_length", sizes.intermediate_size);
    Set("block_count", sizes.num_layers);
    Set("attention.head_count", sizes.num_heads);
    // As the family reads and completes the configuration.
    const Json whole = config_->ToJson();
    if (architecture_ == kGgufGpt2) {
      const Json* activation = JsonFind(whole, "activation_function");
      if (activation != nullptr && *activation != "gelu_new")
        return Fail(Code::kUnsupported, "{}: llama.cpp computes GPT-2 with gelu_new only", name);
      Set("attention.layer_norm_epsilon", whole.at("layer_norm_epsilon").get<double>());
      return {};
    }
    if (const Json* window = JsonFind(whole, "sliding_window");
        window != nullptr && window->is_number() && *window < sizes.max_positions) {
      return Fail(Code::kUnsupported,
                  "{}: llama.cpp computes {} without windows of attention, and sliding_window is {}; export it as a "
                  "model folder",
                  name, architecture_, DumpJson(*window));
    }
    Set("attention.head_count_kv", sizes.num_kv_heads);
    Set("attention.key_length", sizes.head_dim);
    Set("attention.value_length", sizes.head_dim);
    Set("rope.dimension_count", sizes.head_dim);
    Set("attention.layer_norm_rms_epsilon", whole.at("rms_norm_eps").get<double>());
    return DescribeRope(config, whole, name);
  }

  /// Positions: `whole` has rope_theta and perhaps rope_scaling, or rope_parameters with both.
  Status DescribeRope(const Json& config, const Json& whole, const std::string& name) {
    const Json* parameters = JsonFind(whole, "rope_parameters");
    const Json& theta_holder = parameters != nullptr && parameters->is_object() ? *parameters : whole;
    const Json* theta = JsonFind(theta_holder, "rope_theta");
    const double base = theta != nullptr && theta->is_number() ? theta->get<double>() : 10000.0;
    Set("rope.freq_base", base);
    const Json* scaling =
        parameters != nullptr && parameters->is_object() ? parameters : JsonFind(whole, "rope_scaling");
    if (scaling == nullptr || !scaling->is_object()) return {};
    const Json* kind = JsonFind(*scaling, "rope_type");
    if (kind == nullptr) kind = JsonFind(*scaling, "type");
    const std::string type = kind != nullptr && kind->is_string() ? kind->get<std::string>() : "default";
    if (type == "default") return {};
    if (type == "linear") {
      Set("rope.scaling.type", std::string("linear"));
      Set("rope.scaling.factor", scaling->at("factor").get<double>());
      return {};
    }
    if (type == "llama3") {
      const Json* original = JsonFind(*scaling, "original_max_position_embeddings");
      if (original == nullptr) original = JsonFind(config, "original_max_position_embeddings");
      const Llama3Scaling llama3{.factor = scaling->at("factor").get<double>(),
                                 .low_freq_factor = scaling->at("low_freq_factor").get<double>(),
                                 .high_freq_factor = scaling->at("high_freq_factor").get<double>(),
                                 .original_max_position_embeddings = original->get<double>()};
      rope_factors_ = RopeFactorsOf(llama3, base, config_->sizes().head_dim);
      return {};
    }
    return Fail(Code::kUnsupported,
                "{}: positions scaled as {} cannot be exported to a GGUF file; linear and llama3 can", name, type);
  }

  Status PlanTensors(const std::map<std::string, TensorMeta>& tensors) {
    std::set<std::string> transposed;
    if (const Json* list = JsonFind(stream_.reader().manifest().meta, kMetaTransposed);
        list != nullptr && list->is_array()) {
      for (const Json& one : *list) {
        if (one.is_string()) transposed.insert(one.get<std::string>());
      }
    }
    const engine::ModelSizes sizes = config_->sizes();
    std::optional<GgmlType> main_type = type_;
    for (const auto& [name, meta] : tensors) {
      const auto gguf_name = GgufNameOf(architecture_, name, sizes.num_layers);
      if (!gguf_name) {
        return Fail(Code::kUnsupported, "{}: GGUF files of {} have no place for {}", stream_.reader().name(),
                    architecture_, name);
      }
      WrittenTensor from{.name = name, .dtype = meta.dtype};
      GgufTensor to{.name = *gguf_name, .shape = meta.shape};
      from.is_transposed =
          meta.shape.size() == 2 && IsStoredTransposed(architecture_, name) != transposed.contains(name);
      if (from.is_transposed) std::swap(to.shape[0], to.shape[1]);
      if (HasTurnedRows(architecture_, name)) {
        const std::int64_t heads = IsOfKeys(name) ? sizes.num_kv_heads : sizes.num_heads;
        if (meta.shape.empty() || meta.shape[0] != heads * sizes.head_dim)
          return Fail(Code::kCorrupt, "{} has not {} heads of {} rows", name, heads, sizes.head_dim);
        from.head_rows = static_cast<std::uint64_t>(sizes.head_dim);
      }
      const GgmlType own = MR_TRY(TypeOf(meta.dtype, name));
      to.type = MR_TRY(TypeFor(to, own));
      if (!main_type && to.shape.size() == 2) main_type = own;
      from_.push_back(std::move(from));
      to_.push_back(std::move(to));
    }
    if (!rope_factors_.empty()) {
      to_.push_back({.name = std::string(kRopeFactors), .shape = {static_cast<std::int64_t>(rope_factors_.size())}});
      from_.push_back({.values = std::move(rope_factors_)});
    }
    metadata_["general.file_type"] = FileType(main_type.value_or(GgmlType::kF32));
    return {};
  }

  /// llama.cpp computes with vectors and the positions of GPT-2 in f32 only. Rows that are no whole blocks stay f16, as
  /// in convert_hf_to_gguf.py.
  Result<GgmlType> TypeFor(const GgufTensor& tensor, GgmlType own) const {
    if (tensor.shape.size() < 2 || tensor.name == "position_embd.weight") return GgmlType::kF32;
    const GgmlType wanted = type_.value_or(own);
    const bool whole = static_cast<std::uint64_t>(tensor.shape.back()) % BlockElements(wanted) == 0;
    return whole ? wanted : GgmlType::kF16;
  }

  /// Returns a file of the tokenizer: a given one, else the checkpoint's; empty if there is none.
  Result<std::string> TokenizerFile(const Manifest& manifest, const std::string& name) {
    if (const auto given = files_.find(name); given != files_.end()) return given->second;
    const std::string kept = std::string(kFilesGroup) + name;
    const auto file = manifest.tensors.find(kept);
    std::string content;
    if (file == manifest.tensors.end() || file->second.bytes() > kMaxVocabulary) return content;
    content.resize(file->second.bytes());
    MR_TRY(stream_.reader().Read(kept, 0, AsWritableBytes(content), stream_.call()));
    return content;
  }

  Status AddVocabulary(const Manifest& manifest) {
    const auto tokens = static_cast<std::uint64_t>(config_->sizes().vocab_size);
    const std::string pieces = MR_TRY(TokenizerFile(manifest, "tokenizer.model"));
    if (!pieces.empty() && AddSentencePiece(pieces, tokens, metadata_)) return {};
    const std::string tokenizer = MR_TRY(TokenizerFile(manifest, "tokenizer.json"));
    const std::string config = MR_TRY(TokenizerFile(manifest, "tokenizer_config.json"));
    std::string why = pieces.empty() ? "there is none" : "it is no BPE model of SentencePiece that fits the model";
    if (!tokenizer.empty()) {
      const Status added = AddByteLevel(tokenizer, config, tokens, metadata_);
      if (added) return {};
      why = added.error().message();
    }
    notes_.push_back("the file has no tokenizer: " + why);
    return {};
  }

  Result<ExportResult> Write() {
    std::vector<std::string> order;
    for (const WrittenTensor& tensor : from_) {
      if (!tensor.name.empty()) order.push_back(std::string(kModelGroup) + tensor.name);
    }
    stream_.Announce(order);
    transfer::MultipartWriter out(*target_.to.store, target_.budget, target_.to.key, {});
    MR_TRY(out.Write(AsBytes(MakeGgufHeader(metadata_, to_)), stream_.call()));
    for (std::size_t i = 0; i < to_.size(); ++i) {
      MR_TRY(WriteTensor(from_[i], to_[i], out));
      const std::string padding(GgufPadding(to_[i].bytes()), '\0');
      MR_TRY(out.Write(AsBytes(padding), stream_.call()));
    }
    const std::uint64_t bytes = MR_TRY(out.Finish(stream_.call())).size;
    return ExportResult{.tensors = to_.size(), .files = 1, .bytes = bytes, .notes = std::move(notes_)};
  }

  /// Converts a tensor in steps of whole heads or rows. A transposed matrix is held in memory twice.
  Status WriteTensor(const WrittenTensor& from, const GgufTensor& to, transfer::MultipartWriter& out) {
    if (from.name.empty()) return Convert(std::as_bytes(std::span(from.values)), from, to, out);
    const std::string tensor = std::string(kModelGroup) + from.name;
    const std::uint64_t width = DTypeBytes(from.dtype);
    std::uint64_t elements = 1;
    for (std::int64_t extent : to.shape) elements *= static_cast<std::uint64_t>(extent);
    const auto row = to.shape.size() < 2 ? std::uint64_t{1} : static_cast<std::uint64_t>(to.shape.back());
    const std::uint64_t unit = from.head_rows > 0 ? from.head_rows * row : row;
    const std::uint64_t step =
        from.is_transposed ? elements : std::min(elements, (kStepElements + unit - 1) / unit * unit);
    Buffer gathered(step * width);
    std::uint64_t filled = 0;
    MR_TRY(stream_.Stream(tensor, [&](ByteSpan bytes) -> Status {
      while (!bytes.empty()) {
        const std::uint64_t some = std::min<std::uint64_t>(bytes.size(), gathered.size() - filled);
        std::memcpy(gathered.data() + filled, bytes.data(), some);
        filled += some;
        bytes = bytes.subspan(some);
        if (filled < gathered.size()) break;
        if (!from.is_transposed) MR_TRY(Convert(gathered.span(), from, to, out));
        if (!from.is_transposed) filled = 0;
      }
      return {};
    }));
    if (!from.is_transposed) return filled > 0 ? Convert(gathered.span().first(filled), from, to, out) : Status();
    Buffer turned(gathered.size());
    const auto columns = static_cast<std::uint64_t>(to.shape[0]), rows = static_cast<std::uint64_t>(to.shape[1]);
    Transpose(gathered.span(), turned.span(), rows, columns, width);
    return Convert(turned.span(), from, to, out);
  }

  /// Writes elements of a tensor: whole heads or rows.
  Status Convert(ByteSpan stored, const WrittenTensor& from, const GgufTensor& to,
                 transfer::MultipartWriter& out) const {
    const std::uint64_t count = stored.size() / DTypeBytes(from.dtype);
    std::vector<float> values(count);
    Dequantize(MR_TRY(TypeOf(from.dtype, from.name)), stored, values);
    if (from.head_rows > 0) {
      const auto row = to.shape.size() < 2 ? std::uint64_t{1} : static_cast<std::uint64_t>(to.shape.back());
      std::vector<float> turned(count);
      for (std::uint64_t r = 0; r < count / row; ++r) {
        const std::uint64_t head = r / from.head_rows * from.head_rows;
        std::memcpy(turned.data() + (head + TurnedRow(r - head, from.head_rows)) * row, values.data() + r * row,
                    row * sizeof(float));
      }
      values = std::move(turned);
    }
    Buffer blocks(count / BlockElements(to.type) * BlockBytes(to.type));
    Quantize(to.type, values, blocks.span());
    return out.Write(blocks.span(), stream_.call());
  }

  TensorStream& stream_;
  const ExportTarget& target_;
  const std::optional<GgmlType> type_;
  const std::map<std::string, std::string>& files_;
  std::shared_ptr<const engine::ModelConfig> config_;
  std::string architecture_;
  std::map<std::string, GgufValue> metadata_;
  std::vector<float> rope_factors_;
  std::vector<std::string> notes_;
  std::vector<WrittenTensor> from_;  ///< and to_, one for one
  std::vector<GgufTensor> to_;
};

}  // namespace

Result<ExportResult> ExportGguf(TensorStream& stream, const ExportTarget& target, std::optional<GgmlType> type,
                                const std::map<std::string, std::string>& files) {
  return GgufExport(stream, target, type, files).Run();
}

}  // namespace millrace::checkpoint
