#include "millrace/checkpoint/gguf/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <variant>

#include "millrace/checkpoint/gguf/gguf_names.h"
#include "millrace/checkpoint/gguf/rope_factors.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

/// The first read of a file. A guess: it covers headers without a vocabulary.
constexpr std::uint64_t kFirstGgufRead = 256 * kKiB;
constexpr std::string_view kRopeFactors = "rope_freqs.weight";  ///< Llama 3's scaling, as numbers

/// Reads the metadata of one architecture.
class Metadata {
 public:
  Metadata(const GgufHeader& header, std::string architecture, std::string_view what)
      : header_(header), architecture_(std::move(architecture)), what_(what) {}

  template <class T>
  const T* Find(std::string_view key) const {
    return header_.Find<T>(fmt::format("{}.{}", architecture_, key));
  }
  Result<std::int64_t> Size(std::string_view key) const {
    const auto* value = Find<std::int64_t>(key);
    if (value == nullptr || *value < 1 || *value > 1 << 30)
      return Fail(Code::kCorrupt, "{}: the metadata have no {}.{}, or an impossible one", what_, architecture_, key);
    return *value;
  }
  Result<double> Number(std::string_view key) const {
    const auto* value = Find<double>(key);
    if (value == nullptr) return Fail(Code::kCorrupt, "{}: the metadata have no {}.{}", what_, architecture_, key);
    return *value;
  }
  const GgufTensor* Tensor(std::string_view name) const {
    const auto found = std::ranges::find(header_.tensors, name, &GgufTensor::name);
    return found == header_.tensors.end() ? nullptr : &*found;
  }
  Result<std::int64_t> VocabSize() const {
    const GgufTensor* table = Tensor("token_embd.weight");
    if (table == nullptr || table->shape.size() != 2) return Fail(Code::kCorrupt, "{} has no token_embd.weight", what_);
    return table->shape[0];
  }

 private:
  const GgufHeader& header_;
  const std::string architecture_;
  const std::string_view what_;
};

/// Returns a float as the double that people write: 1e-05, not 9.999999747378752e-06.
double Shortest(double number) { return std::stod(fmt::format("{}", static_cast<float>(number))); }

/// Adds what the file says of the scaling of positions to `config`, which has rope_theta and head_dim.
Status AddRopeScaling(const Metadata& metadata, std::span<const float> factors, std::string_view what, Json& config) {
  // As llama.cpp reads it (llama-model.cpp, load_hparams): without a type, a factor scales linearly. Old files name the
  // factor in another way.
  const auto* type = metadata.Find<std::string>("rope.scaling.type");
  const auto* factor = metadata.Find<double>("rope.scaling.factor");
  if (factor == nullptr) factor = metadata.Find<double>("rope.scale_linear");
  const bool is_linear = type == nullptr ? factor != nullptr && *factor != 0 && *factor != 1 : *type == "linear";
  if (is_linear && factor == nullptr) {
    return Fail(Code::kCorrupt, "{}: positions are scaled, and there is no rope.scaling.factor", what);
  }
  if (is_linear && factors.empty()) {
    config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", Shortest(*factor)}};
    return {};
  }
  if (is_linear || (type != nullptr && *type != "none")) {
    return Fail(Code::kUnsupported,
                "{}: the metadata do not tell how positions are scaled (they have {}); give the model's config.json "
                "with --config",
                what, type == nullptr ? "a factor" : *type);
  }
  if (std::ranges::all_of(factors, [](float factor) { return factor == 1; })) return {};
  if (factors.size() != static_cast<std::size_t>(config.at("head_dim").get<std::int64_t>() / 2)) {
    return Fail(Code::kCorrupt, "{}: {} has {} factors for heads of {} rows", what, kRopeFactors, factors.size(),
                config.at("head_dim").get<std::int64_t>());
  }
  const auto scaling = FindLlama3Scaling(factors, config.at("rope_theta").get<double>());
  if (!scaling) {
    return Fail(Code::kUnsupported,
                "{}: the factors of positions ({}) are not those of Llama 3's scaling, or too few to tell it; give the "
                "model's config.json with --config",
                what, kRopeFactors);
  }
  const double original = scaling->original_max_position_embeddings;
  config["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", Shortest(scaling->factor)},
                            {"low_freq_factor", scaling->low_freq_factor},
                            {"high_freq_factor", scaling->high_freq_factor},
                            {"original_max_position_embeddings", static_cast<std::int64_t>(std::lround(original))}};
  return {};
}

/// Returns the configuration of a Llama or a Qwen model.
Result<Json> LlamaConfig(std::string_view architecture, const Metadata& metadata, std::span<const float> rope_factors,
                         std::string_view what) {
  const std::int64_t heads = MR_TRY(metadata.Size("attention.head_count"));
  const std::int64_t hidden = MR_TRY(metadata.Size("embedding_length"));
  const auto* kv_heads = metadata.Find<std::int64_t>("attention.head_count_kv");
  const auto* head_dim = metadata.Find<std::int64_t>("attention.key_length");
  const auto* theta = metadata.Find<double>("rope.freq_base");
  if (metadata.Find<std::int64_t>("expert_count") != nullptr)
    return Fail(Code::kUnsupported, "{}: mixtures of experts are not implemented", what);
  const char* name = architecture == kGgufQwen2   ? "Qwen2ForCausalLM"
                     : architecture == kGgufQwen3 ? "Qwen3ForCausalLM"
                                                  : "LlamaForCausalLM";
  Json config{{"architectures", Json::array({name})}, {"model_type", architecture}};
  config["vocab_size"] = MR_TRY(metadata.VocabSize());
  config["hidden_size"] = hidden;
  config["intermediate_size"] = MR_TRY(metadata.Size("feed_forward_length"));
  config["num_hidden_layers"] = MR_TRY(metadata.Size("block_count"));
  config["num_attention_heads"] = heads;
  config["num_key_value_heads"] = kv_heads != nullptr ? *kv_heads : heads;
  if (architecture != kGgufQwen2 || head_dim != nullptr) {
    config["head_dim"] = head_dim != nullptr ? *head_dim : hidden / heads;
  }
  config["max_position_embeddings"] = MR_TRY(metadata.Size("context_length"));
  config["rms_norm_eps"] = Shortest(MR_TRY(metadata.Number("attention.layer_norm_rms_epsilon")));
  config["rope_theta"] = theta != nullptr ? Shortest(*theta) : 10000.0;
  config["hidden_act"] = "silu";
  // Qwen2 always has biases of queries, keys and values.
  if (architecture != kGgufQwen2) config["attention_bias"] = metadata.Tensor("blk.0.attn_q.bias") != nullptr;
  if (architecture == kGgufLlama) config["mlp_bias"] = metadata.Tensor("blk.0.ffn_up.bias") != nullptr;
  config["tie_word_embeddings"] = metadata.Tensor("output.weight") == nullptr;
  MR_TRY(AddRopeScaling(metadata, rope_factors, what, config));
  return config;
}

Result<Json> Gpt2Config(const Metadata& metadata) {
  Json config{{"architectures", Json::array({"GPT2LMHeadModel"})}, {"model_type", "gpt2"}};
  config["vocab_size"] = MR_TRY(metadata.VocabSize());
  config["n_embd"] = MR_TRY(metadata.Size("embedding_length"));
  config["n_inner"] = MR_TRY(metadata.Size("feed_forward_length"));
  config["n_layer"] = MR_TRY(metadata.Size("block_count"));
  config["n_head"] = MR_TRY(metadata.Size("attention.head_count"));
  config["n_positions"] = MR_TRY(metadata.Size("context_length"));
  config["activation_function"] = "gelu_new";
  config["layer_norm_epsilon"] = Shortest(MR_TRY(metadata.Number("attention.layer_norm_epsilon")));
  config["tie_word_embeddings"] = metadata.Tensor("output.weight") == nullptr;
  return config;
}

/// Members of an architecture that are read, or that change nothing here: sizes that the tensors tell, and how a model
/// was made.
constexpr std::string_view kReadMembers[] = {"attention.head_count",
                                             "attention.head_count_kv",
                                             "attention.key_length",
                                             "attention.layer_norm_epsilon",
                                             "attention.layer_norm_rms_epsilon",
                                             "block_count",
                                             "context_length",
                                             "embedding_length",
                                             "expert_count",
                                             "expert_used_count",
                                             "feed_forward_length",
                                             "rope.freq_base",
                                             "rope.scale_linear",
                                             "rope.scaling.attn_factor",
                                             "rope.scaling.factor",
                                             "rope.scaling.finetuned",
                                             "rope.scaling.original_context_length",
                                             "rope.scaling.type",
                                             "tensor_data_layout",
                                             "vocab_size"};
/// Members that must have the size of a head.
constexpr std::string_view kHeadSizes[] = {"attention.value_length", "rope.dimension_count"};

/// Checks that the members of the architecture ask for nothing that is not read, such as a window of attention.
Status CheckMembers(const GgufHeader& header, std::string_view architecture, std::int64_t head_dim,
                    std::string_view what) {
  for (const auto& [key, value] : header.metadata) {
    if (!key.starts_with(architecture) || !key.substr(architecture.size()).starts_with('.')) continue;
    const std::string_view member = std::string_view(key).substr(architecture.size() + 1);
    if (std::ranges::find(kReadMembers, member) != std::end(kReadMembers)) continue;
    const auto* integer = std::get_if<std::int64_t>(&value);
    const auto* number = std::get_if<double>(&value);
    const auto* flag = std::get_if<bool>(&value);
    const bool is_size = std::ranges::find(kHeadSizes, member) != std::end(kHeadSizes);
    if (integer != nullptr && *integer == (is_size ? head_dim : 0)) continue;
    if ((number != nullptr && *number == 0) || (flag != nullptr && !*flag)) continue;
    return Fail(Code::kUnsupported,
                "{}: the member {} is not implemented; if the model does not need it, give its config.json with "
                "--config",
                what, key);
  }
  return {};
}

/// Copies or dequantizes elements in their order.
void DecodeRun(GgmlType type, ByteSpan stored, MutableByteSpan elements) {
  if (BlockElements(type) == 1) {
    std::memcpy(elements.data(), stored.data(), stored.size());
    return;
  }
  Dequantize(type, stored, {reinterpret_cast<float*>(elements.data()), elements.size() / sizeof(float)});
}

/// Returns the values of rope_freqs.weight; none if the file does not have it.
Result<std::vector<float>> ReadRopeFactors(const object::ReadLocation& location, const ReadGguf& read,
                                           std::string_view what, const object::Call& call) {
  constexpr std::uint64_t kMaxFactors = 4096;  // of heads of 8,192 rows; those of today have 256
  const auto tensor = std::ranges::find(read.header.tensors, kRopeFactors, &GgufTensor::name);
  if (tensor == read.header.tensors.end()) return std::vector<float>();
  if (tensor->shape.size() != 1 || static_cast<std::uint64_t>(tensor->shape[0]) > kMaxFactors)
    return Fail(Code::kCorrupt, "{}: the tensor {} should be a list of factors", what, kRopeFactors);
  std::string bytes(tensor->bytes(), '\0');
  const object::GetOptions range{.range = object::ByteRange{tensor->offset, bytes.size()}, .if_match = read.info.etag};
  const auto got = MR_TRY(object::Get(*location.store, location.key, range, AsWritableBytes(bytes), call));
  if (!got || got->bytes != bytes.size()) return Fail(Code::kStale, "{} changed while it was read", what);
  std::vector<float> factors(static_cast<std::size_t>(tensor->shape[0]));
  Dequantize(tensor->type, AsBytes(bytes), factors);
  return factors;
}

}  // namespace

std::uint64_t GgufPart::row_elements() const {
  return meta.shape.empty() ? 1 : static_cast<std::uint64_t>(meta.shape.size() == 1 ? 1 : meta.shape.back());
}

std::uint64_t GgufPart::unit_elements() const {
  return head_rows > 0 ? head_rows * row_elements() : BlockElements(type);
}

std::uint64_t TurnedRow(std::uint64_t row, std::uint64_t rows) {
  const std::uint64_t half = rows / 2;
  return 2 * (row % half) + row / half;
}

void GgufPart::Decode(ByteSpan stored, MutableByteSpan elements) const {
  if (head_rows == 0) return DecodeRun(type, stored, elements);
  const std::uint64_t row = row_elements() * DTypeBytes(meta.dtype);
  const std::uint64_t stored_row = stored_unit_bytes() / head_rows;
  for (std::uint64_t first = 0; first * row < elements.size(); first += head_rows) {
    for (std::uint64_t r = 0; r < head_rows; ++r) {
      DecodeRun(type, stored.subspan((first + TurnedRow(r, head_rows)) * stored_row, stored_row),
                elements.subspan((first + r) * row, row));
    }
  }
}

Result<GgufModel> DescribeGgufModel(const GgufHeader& header, const std::optional<Json>& config,
                                    std::span<const float> rope_factors, std::string_view what) {
  const auto* architecture = header.Find<std::string>("general.architecture");
  if (architecture == nullptr) return Fail(Code::kCorrupt, "{}: the metadata have no general.architecture", what);
  if (!IsGgufArchitecture(*architecture)) {
    return Fail(Code::kUnsupported,
                "{}: models of the architecture {} cannot be read from GGUF files; llama, qwen2, qwen3 and gpt2 can",
                what, *architecture);
  }
  const Metadata metadata(header, *architecture, what);
  const bool gpt2 = *architecture == kGgufGpt2;
  GgufModel model{.architecture = *architecture, .header_bytes = header.bytes};
  model.config =
      config ? *config : MR_TRY(gpt2 ? Gpt2Config(metadata) : LlamaConfig(*architecture, metadata, rope_factors, what));
  const std::int64_t blocks = MR_TRY(metadata.Size("block_count"));
  const std::int64_t heads = MR_TRY(metadata.Size("attention.head_count"));
  const auto *kv_heads = metadata.Find<std::int64_t>("attention.head_count_kv"),
             *head_dim = metadata.Find<std::int64_t>("attention.key_length");
  if (!config) {
    const std::int64_t usual = MR_TRY(metadata.Size("embedding_length")) / heads;
    MR_TRY(CheckMembers(header, *architecture, head_dim != nullptr ? *head_dim : usual, what));
  }
  for (const GgufTensor& tensor : header.tensors) {
    if (tensor.name == kRopeFactors) continue;  // they are part of config.json
    auto name = HuggingFaceNameOf(*architecture, tensor.name, blocks);
    if (!name) {
      return Fail(Code::kUnsupported, "{}: models of the architecture {} have no tensor {}", what, *architecture,
                  tensor.name);
    }
    GgufPart part{.name = *name,
                  .meta = {StoredType(tensor.type), tensor.shape},
                  .type = tensor.type,
                  .offset = tensor.offset,
                  .stored_bytes = tensor.bytes()};
    if (HasTurnedRows(*architecture, *name)) {
      const std::int64_t of = IsOfKeys(*name) && kv_heads != nullptr ? *kv_heads : heads;
      const std::int64_t rows = tensor.shape.empty() ? 0 : tensor.shape[0];
      if (of < 1 || rows % (2 * of) != 0 || (tensor.shape.size() == 1 && BlockElements(tensor.type) > 1))
        return Fail(Code::kCorrupt, "{}: the {} rows of {} are not those of {} heads", what, rows, tensor.name, of);
      part.head_rows = static_cast<std::uint64_t>(rows / of);
    }
    if (IsStoredTransposed(*architecture, *name)) model.transposed.push_back(*name);
    MR_TRY(part.meta.Check(part.name));
    model.parts.push_back(std::move(part));
  }
  model.tokenizer = TokenizerOf(header);
  return model;
}

Result<ReadGguf> ReadGgufHeader(const object::ReadLocation& location, object::Call call) {
  const std::string what = fmt::format("{}/{}", location.store->Describe(), location.key);
  std::string bytes(kFirstGgufRead, '\0');
  object::GetOptions options{.range = object::ByteRange{0, bytes.size()}};
  auto got = MR_TRY(object::Get(*location.store, location.key, options, AsWritableBytes(bytes), call));
  if (!got) return Fail(Code::kNotFound, "{} does not exist; `millrace ls` lists what is there", what);
  bytes.resize(got->bytes);
  const object::ObjectInfo info = got->info;
  while (true) {
    auto header = MR_TRY(ParseGgufHeader(bytes, info.size, what));
    if (header) return ReadGguf{info, *std::move(header)};
    const std::uint64_t there = bytes.size(), size = std::min({2 * there, info.size, kMaxGgufHeader});
    bytes.resize(size);
    options = {.range = object::ByteRange{there, size - there}, .if_match = info.etag};
    got = MR_TRY(object::Get(*location.store, location.key, options, AsWritableBytes(bytes).subspan(there), call));
    if (!got || got->bytes != size - there) return Fail(Code::kStale, "{} changed while it was read", what);
  }
}

Result<OpenedGguf> OpenGgufFile(const object::ReadLocation& location, const std::optional<Json>& config,
                                object::Call call) {
  ReadGguf read = MR_TRY(ReadGgufHeader(location, call));
  const std::string what = fmt::format("{}/{}", location.store->Describe(), location.key);
  std::vector<float> factors;
  if (!config) factors = MR_TRY(ReadRopeFactors(location, read, what, call));
  GgufModel model = MR_TRY(DescribeGgufModel(read.header, config, factors, what));
  return OpenedGguf{std::move(read.info), std::move(model)};
}

}  // namespace millrace::checkpoint
