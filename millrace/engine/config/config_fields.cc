#include "millrace/engine/config/config_fields.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace millrace::engine {
namespace {

bool IsAbsent(const Json& json, std::string_view key) {
  const Json* member = JsonFind(json, key);
  return member == nullptr || member->is_null();
}

}  // namespace

Result<std::int64_t> OptionalInt(const Json& json, std::string_view key, std::int64_t absent) {
  return IsAbsent(json, key) ? absent : JsonInt(json, key);
}

Result<double> OptionalNumber(const Json& json, std::string_view key, double absent) {
  return IsAbsent(json, key) ? absent : JsonNumber(json, key);
}

Result<bool> OptionalFlag(const Json& json, std::string_view key, bool absent) {
  if (IsAbsent(json, key)) return absent;
  const Json* member = JsonFind(json, key);
  if (!member->is_boolean())
    return Fail(Code::kInvalidArgument, "{} is {}; expected true or false", key, DumpJson(*member));
  return member->get<bool>();
}

Result<std::string> OptionalText(const Json& json, std::string_view key, std::string absent) {
  return IsAbsent(json, key) ? absent : JsonString(json, key);
}

Result<double> OptionalProbability(const Json& json, std::string_view key, double absent, std::string_view what) {
  const double probability = MR_TRY(OptionalNumber(json, key, absent));
  if (!(probability >= 0 && probability < 1)) {
    return Fail(Code::kInvalidArgument, "{}: {} is {}; it must lie in 0 … below 1", what, key, probability);
  }
  return probability;
}

Result<double> OptionalDeviation(const Json& json, std::string_view key, double absent, std::string_view what) {
  const double deviation = MR_TRY(OptionalNumber(json, key, absent));
  if (!(deviation >= 0 && deviation <= 1)) {
    return Fail(Code::kInvalidArgument, "{}: {} is {}; it must lie in 0 … 1", what, key, deviation);
  }
  return deviation;
}

Result<std::int64_t> OptionalClasses(const Json& json, std::string_view what) {
  constexpr std::int64_t kMaxClasses = 1 << 20;
  const Json* names = JsonFind(json, "id2label");
  const std::int64_t named = names != nullptr && names->is_object() ? static_cast<std::int64_t>(names->size()) : 2;
  const std::int64_t classes = MR_TRY(OptionalInt(json, "num_labels", named));
  if (classes < 1 || classes > kMaxClasses) {
    return Fail(Code::kInvalidArgument, "{}: {} labels; there must be 1 … {}", what, classes, kMaxClasses);
  }
  return classes;
}

void NameClasses(Json& json, std::span<const std::string> names) {
  Json of_ids = Json::object(), of_names = Json::object();
  for (std::size_t i = 0; i < names.size(); ++i) {
    of_ids[std::to_string(i)] = names[i];
    of_names[names[i]] = i;
  }
  json["id2label"] = std::move(of_ids);
  json["label2id"] = std::move(of_names);
}

void WriteClassNames(Json& json, std::int64_t classes) {
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < classes; ++i) names.push_back(fmt::format("LABEL_{}", i));
  NameClasses(json, names);
}

Status CheckSizes(const ModelSizes& sizes, std::string_view what) {
  struct Limit {
    std::string_view name;
    std::int64_t value, most;
  };
  // At least eight times the sizes of Llama 3.1 405B. The limits bound what a damaged file can make us allocate.
  const Limit limits[] = {{"the vocabulary's size", sizes.vocab_size, 1 << 22},
                          {"the hidden size", sizes.hidden_size, 1 << 17},
                          {"the intermediate size", sizes.intermediate_size, 1 << 19},
                          {"the number of layers", sizes.num_layers, 1 << 12},
                          {"the number of attention heads", sizes.num_heads, 1 << 12},
                          {"the number of key-value heads", sizes.num_kv_heads, 1 << 12},
                          {"the size of a head", sizes.head_dim, 1 << 12},
                          {"the number of positions", sizes.max_positions, 1 << 24}};
  for (const Limit& limit : limits) {
    if (limit.value < 1 || limit.value > limit.most) {
      return Fail(Code::kInvalidArgument, "{}: {} is {}; it must lie in 1…{}", what, limit.name, limit.value,
                  limit.most);
    }
  }
  if (sizes.num_heads % sizes.num_kv_heads != 0) {
    return Fail(Code::kInvalidArgument,
                "{}: {} attention heads are not a multiple of {} key-value heads; change num_attention_heads or "
                "num_key_value_heads",
                what, sizes.num_heads, sizes.num_kv_heads);
  }
  return {};
}

}  // namespace millrace::engine
