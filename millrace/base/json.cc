#include "millrace/base/json.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace millrace {
namespace {

std::string Position(std::string_view text, std::size_t byte) {
  std::string_view before = text.substr(0, std::min(byte, text.size()));
  auto line = 1 + std::count(before.begin(), before.end(), '\n');
  std::size_t start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  return fmt::format("line {} column {}", line, before.size() - start + 1);
}

/// Builds a value from nlohmann's events. nlohmann's own builder looks every new key up among the earlier ones, which
/// takes quadratic time in an ordered object. This builder keeps the members of an open object on a stack, and finds
/// duplicate keys by sorting when the object closes: no choice of keys makes that slow, as it could a hash table.
template <class Value>
class JsonBuilder {
 public:
  JsonBuilder(std::string_view text, const JsonLimits& limits) : text_(text), limits_(limits) {}

  // What nlohmann::json::sax_parse calls; `false` stops it.
  // NOLINTBEGIN(readability-identifier-naming)
  bool null() { return Add(Value(nullptr)); }
  bool boolean(bool value) { return Add(Value(value)); }
  bool number_integer(std::int64_t value) { return Add(Value(value)); }
  bool number_unsigned(std::uint64_t value) { return Add(Value(value)); }
  bool number_float(double value, const std::string&) { return Add(Value(value)); }
  bool string(std::string& value) { return Add(Value(std::move(value))); }
  bool binary(typename Value::binary_t&) { return false; }  // no such thing in a text
  bool start_object(std::size_t) { return Open(); }
  bool start_array(std::size_t) { return Open(); }
  bool key(std::string& name) {
    keys_.push_back(std::move(name));
    return true;
  }
  bool end_array() {
    auto first = values_.begin() + static_cast<std::ptrdiff_t>(open_.back().values);
    typename Value::array_t array(std::make_move_iterator(first), std::make_move_iterator(values_.end()));
    return Close(Value(std::move(array)));
  }
  bool end_object() {
    Value object = Value::object();
    Fill(object.template get_ref<typename Value::object_t&>());
    return Close(std::move(object));
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) {
    const bool is_syntax = dynamic_cast<const nlohmann::json::parse_error*>(&error) != nullptr;
    problem_ = is_syntax ? "not valid JSON at " + Position(text_, position > 0 ? position - 1 : 0)
                         : fmt::format("not valid JSON: {}", error.what());
    return false;
  }
  // NOLINTEND(readability-identifier-naming)

  const std::string& problem() const { return problem_; }
  Value Take() { return std::move(values_.front()); }

 private:
  struct Frame {
    std::size_t values, keys;  // where those of this array or object begin
  };

  bool CountOne() {
    if (count_++ < limits_.values) return true;
    problem_ = fmt::format("more than {} values", limits_.values);
    return false;
  }
  bool Add(Value value) {
    values_.push_back(std::move(value));
    return CountOne();
  }
  bool Open() {
    if (open_.size() >= static_cast<std::size_t>(limits_.depth)) {
      problem_ = fmt::format("nested deeper than {} levels", limits_.depth);
      return false;
    }
    open_.push_back({values_.size(), keys_.size()});
    return CountOne();
  }
  bool Close(Value value) {
    values_.resize(open_.back().values);
    keys_.resize(open_.back().keys);
    open_.pop_back();
    values_.push_back(std::move(value));
    return true;
  }

  /// Moves the innermost object's members into `object`.
  void Fill(typename Value::object_t& object) {
    const std::span<Value> values = std::span(values_).subspan(open_.back().values);
    const std::span<std::string> keys = std::span(keys_).subspan(open_.back().keys);
    if constexpr (std::is_same_v<Value, Json>) {
      const std::vector<bool> is_repeated = SettleDuplicates(keys, values);
      object.reserve(keys.size());
      for (std::size_t i = 0; i < keys.size(); ++i) {
        // The method of the vector: that of the map would search for the key.
        if (!is_repeated[i]) object.Container::emplace_back(std::move(keys[i]), std::move(values[i]));
      }
    } else {
      for (std::size_t i = 0; i < keys.size(); ++i) {
        object.insert_or_assign(std::move(keys[i]), std::move(values[i]));
      }
    }
  }

  /// Gives the first member of each name the value of the last one. Returns true for the other members of that name.
  static std::vector<bool> SettleDuplicates(std::span<const std::string> keys, std::span<Value> values) {
    std::vector<std::size_t> order(keys.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::sort(order, [keys](std::size_t a, std::size_t b) {
      const int compared = keys[a].compare(keys[b]);
      return compared != 0 ? compared < 0 : a < b;
    });
    std::vector<bool> is_repeated(keys.size());
    for (std::size_t i = 1, first = 0; i < order.size(); ++i) {
      if (keys[order[i]] != keys[order[first]]) {
        first = i;
        continue;
      }
      values[order[first]] = std::move(values[order[i]]);
      is_repeated[order[i]] = true;
    }
    return is_repeated;
  }

  const std::string_view text_;
  const JsonLimits limits_;
  std::vector<Value> values_;  // complete, but their array or object is not
  std::vector<std::string> keys_;
  std::vector<Frame> open_;
  std::size_t count_ = 0;
  std::string problem_;
};

template <class Value>
Result<Value> ParseAs(std::string_view text, std::string_view what, const JsonLimits& limits) {
  if (text.size() > limits.bytes) {
    return Fail(Code::kInvalidArgument, "{}: {} bytes of JSON; at most {} are allowed", what, text.size(),
                limits.bytes);
  }
  JsonBuilder<Value> builder(text, limits);
  if (Value::sax_parse(text.begin(), text.end(), &builder)) return builder.Take();
  return Fail(Code::kInvalidArgument, "{}: {}", what, builder.problem());
}

const char* KindOf(const Json* value) { return value == nullptr ? "nothing" : value->type_name(); }

}  // namespace

Result<Json> ParseJson(std::string_view text, std::string_view what, const JsonLimits& limits) {
  return ParseAs<Json>(text, what, limits);
}

Result<nlohmann::json> ParseJsonTree(std::string_view text, std::string_view what, const JsonLimits& limits) {
  return ParseAs<nlohmann::json>(text, what, limits);
}

std::string DumpJson(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }
std::string DumpJsonPretty(const Json& value) { return value.dump(2, ' ', false, Json::error_handler_t::replace); }

const Json* JsonFind(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  auto found = object.find(std::string(key));
  return found == object.end() ? nullptr : &*found;
}

Result<std::string> JsonString(const Json& object, std::string_view key) {
  const Json* value = JsonFind(object, key);
  if (value == nullptr || !value->is_string())
    return Fail(Code::kInvalidArgument, "\"{}\" should be a string, found {}", key, KindOf(value));
  return value->get<std::string>();
}

Result<std::int64_t> JsonInt(const Json& object, std::string_view key) {
  const Json* value = JsonFind(object, key);
  if (value == nullptr || !value->is_number_integer() ||
      (value->is_number_unsigned() && value->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)))
    return Fail(Code::kInvalidArgument, "\"{}\" should be an integer, found {}", key, KindOf(value));
  return value->get<std::int64_t>();
}

Result<std::uint64_t> JsonUint(const Json& object, std::string_view key) {
  const Json* value = JsonFind(object, key);
  bool ok = value != nullptr &&
            (value->is_number_unsigned() || (value->is_number_integer() && value->get<std::int64_t>() >= 0));
  if (!ok) return Fail(Code::kInvalidArgument, "\"{}\" should be a non-negative integer, found {}", key, KindOf(value));
  return value->get<std::uint64_t>();
}

Result<double> JsonNumber(const Json& object, std::string_view key) {
  const Json* value = JsonFind(object, key);
  if (value == nullptr || !value->is_number())
    return Fail(Code::kInvalidArgument, "\"{}\" should be a number, found {}", key, KindOf(value));
  return value->get<double>();
}

}  // namespace millrace
