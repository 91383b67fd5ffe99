#include "millrace/data/arrow/json_rows.h"

#include <arrow/array.h>
#include <arrow/array/validate.h>
#include <arrow/extension_type.h>
#include <arrow/scalar.h>
#include <arrow/type.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "millrace/base/text.h"
#include "millrace/data/arrow/status.h"

namespace millrace::data::arrow_format {
namespace {

/// The same layout without the demand that text be UTF-8: one bad row must not cost its whole batch.
std::shared_ptr<arrow::DataType> Relaxed(const std::shared_ptr<arrow::DataType>& type) {
  auto child = [&](int i) { return type->field(i)->WithType(Relaxed(type->field(i)->type())); };
  switch (type->id()) {
    case arrow::Type::STRING:
      return arrow::binary();
    case arrow::Type::LARGE_STRING:
      return arrow::large_binary();
    case arrow::Type::STRING_VIEW:
      return arrow::binary_view();
    case arrow::Type::LIST:
      return arrow::list(child(0));
    case arrow::Type::LARGE_LIST:
      return arrow::large_list(child(0));
    case arrow::Type::FIXED_SIZE_LIST:
      return arrow::fixed_size_list(child(0), static_cast<const arrow::FixedSizeListType&>(*type).list_size());
    case arrow::Type::STRUCT: {
      arrow::FieldVector fields;
      for (int i = 0; i < type->num_fields(); ++i) fields.push_back(child(i));
      return arrow::struct_(fields);
    }
    case arrow::Type::MAP: {
      const auto& map = static_cast<const arrow::MapType&>(*type);
      return std::make_shared<arrow::MapType>(map.key_field()->WithType(Relaxed(map.key_type())),
                                              map.item_field()->WithType(Relaxed(map.item_type())));
    }
    case arrow::Type::DICTIONARY: {
      const auto& dictionary = static_cast<const arrow::DictionaryType&>(*type);
      return arrow::dictionary(dictionary.index_type(), Relaxed(dictionary.value_type()), dictionary.ordered());
    }
    case arrow::Type::SPARSE_UNION:
    case arrow::Type::DENSE_UNION: {
      const auto& either = static_cast<const arrow::UnionType&>(*type);
      arrow::FieldVector fields;
      for (int i = 0; i < type->num_fields(); ++i) fields.push_back(child(i));
      return type->id() == arrow::Type::DENSE_UNION ? arrow::dense_union(fields, either.type_codes())
                                                    : arrow::sparse_union(fields, either.type_codes());
    }
    case arrow::Type::RUN_END_ENCODED:
      return arrow::run_end_encoded(type->field(0)->type(), Relaxed(type->field(1)->type()));
    case arrow::Type::LIST_VIEW:
      return arrow::list_view(child(0));
    case arrow::Type::LARGE_LIST_VIEW:
      return arrow::large_list_view(child(0));
    case arrow::Type::EXTENSION:
      return Relaxed(static_cast<const arrow::ExtensionType&>(*type).storage_type());
    default:
      return type;
  }
}

std::shared_ptr<arrow::ArrayData> Relaxed(const arrow::ArrayData& data) {
  auto relaxed = std::make_shared<arrow::ArrayData>(data);
  relaxed->type = Relaxed(data.type);
  for (auto& child : relaxed->child_data) child = Relaxed(*child);
  if (relaxed->dictionary) relaxed->dictionary = Relaxed(*relaxed->dictionary);
  return relaxed;
}

void AppendQuoted(std::string_view text, std::string& out) {
  static constexpr std::string_view kHex = "0123456789abcdef";
  out += '"';
  std::size_t plain = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    out.append(text, plain, i - plain);
    plain = i + 1;
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        out.append("\\u00") += {kHex[c >> 4], kHex[c & 15]};
    }
  }
  out.append(text, plain) += '"';
}

template <class Array>
auto ViewOf(const arrow::Array& array, std::int64_t i) {
  return static_cast<const Array&>(array).GetView(i);
}

void AppendValue(const arrow::Array& array, std::int64_t i, std::string& out);

template <class Number>
void AppendNumber(Number value, std::string& out) {
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isfinite(value)) {
      out += "null";
      return;
    }
  }
  fmt::format_to(std::back_inserter(out), "{}", value);
}

template <class Array>
void AppendBytes(const arrow::Array& array, std::int64_t i, std::string& out) {
  std::string_view bytes = ViewOf<Array>(array, i);
  if (IsValidUtf8(bytes)) {
    AppendQuoted(bytes, out);
  } else {
    out += "null";
  }
}

template <class Array>
void AppendList(const arrow::Array& array, std::int64_t i, std::string& out) {
  const auto& list = static_cast<const Array&>(array);
  out += '[';
  std::int64_t first = list.value_offset(i), end = first + list.value_length(i);
  for (std::int64_t k = first; k < end; ++k) {
    if (k > first) out += ',';
    AppendValue(*list.values(), k, out);
  }
  out += ']';
}

void AppendStruct(const arrow::StructArray& array, std::int64_t i, std::string& out) {
  const auto& fields = array.struct_type()->fields();
  out += '{';
  bool first = true;
  for (int k = 0; k < array.num_fields(); ++k) {
    const arrow::Array& child = *array.field(k);
    if (child.IsNull(i)) continue;
    if (!std::exchange(first, false)) out += ',';
    AppendQuoted(fields[k]->name(), out);
    out += ':';
    AppendValue(child, i, out);
  }
  out += '}';
}

void AppendMap(const arrow::MapArray& map, std::int64_t i, std::string& out) {
  auto key_type = map.keys()->type_id();
  if (key_type != arrow::Type::STRING && key_type != arrow::Type::LARGE_STRING) {
    AppendList<arrow::ListArray>(map, i, out);
    return;
  }
  out += '{';
  std::int64_t first = map.value_offset(i), end = first + map.value_length(i);
  for (std::int64_t k = first; k < end; ++k) {
    if (k > first) out += ',';
    AppendValue(*map.keys(), k, out);
    out += ':';
    AppendValue(*map.items(), k, out);
  }
  out += '}';
}

void AppendValue(const arrow::Array& array, std::int64_t i, std::string& out) {
  using arrow::Type;
  if (array.IsNull(i)) {
    out += "null";
    return;
  }
  switch (array.type_id()) {
    case Type::BOOL:
      out += ViewOf<arrow::BooleanArray>(array, i) ? "true" : "false";
      return;
    case Type::INT8:
      AppendNumber(int{ViewOf<arrow::Int8Array>(array, i)}, out);
      return;
    case Type::INT16:
      AppendNumber(int{ViewOf<arrow::Int16Array>(array, i)}, out);
      return;
    case Type::INT32:
      AppendNumber(ViewOf<arrow::Int32Array>(array, i), out);
      return;
    case Type::INT64:
      AppendNumber(ViewOf<arrow::Int64Array>(array, i), out);
      return;
    case Type::UINT8:
      AppendNumber(unsigned{ViewOf<arrow::UInt8Array>(array, i)}, out);
      return;
    case Type::UINT16:
      AppendNumber(unsigned{ViewOf<arrow::UInt16Array>(array, i)}, out);
      return;
    case Type::UINT32:
      AppendNumber(ViewOf<arrow::UInt32Array>(array, i), out);
      return;
    case Type::UINT64:
      AppendNumber(ViewOf<arrow::UInt64Array>(array, i), out);
      return;
    case Type::FLOAT:
      AppendNumber(ViewOf<arrow::FloatArray>(array, i), out);
      return;
    case Type::DOUBLE:
      AppendNumber(ViewOf<arrow::DoubleArray>(array, i), out);
      return;
    case Type::STRING:
      AppendQuoted(ViewOf<arrow::StringArray>(array, i), out);
      return;
    case Type::LARGE_STRING:
      AppendQuoted(ViewOf<arrow::LargeStringArray>(array, i), out);
      return;
    case Type::STRING_VIEW:
      AppendQuoted(ViewOf<arrow::StringViewArray>(array, i), out);
      return;
    case Type::BINARY:
      AppendBytes<arrow::BinaryArray>(array, i, out);
      return;
    case Type::LARGE_BINARY:
      AppendBytes<arrow::LargeBinaryArray>(array, i, out);
      return;
    case Type::BINARY_VIEW:
      AppendBytes<arrow::BinaryViewArray>(array, i, out);
      return;
    case Type::FIXED_SIZE_BINARY:
      AppendBytes<arrow::FixedSizeBinaryArray>(array, i, out);
      return;
    case Type::LIST:
      AppendList<arrow::ListArray>(array, i, out);
      return;
    case Type::LARGE_LIST:
      AppendList<arrow::LargeListArray>(array, i, out);
      return;
    case Type::FIXED_SIZE_LIST:
      AppendList<arrow::FixedSizeListArray>(array, i, out);
      return;
    case Type::MAP:
      AppendMap(static_cast<const arrow::MapArray&>(array), i, out);
      return;
    case Type::STRUCT:
      AppendStruct(static_cast<const arrow::StructArray&>(array), i, out);
      return;
    case Type::DICTIONARY: {
      const auto& dictionary = static_cast<const arrow::DictionaryArray&>(array);
      AppendValue(*dictionary.dictionary(), dictionary.GetValueIndex(i), out);
      return;
    }
    case Type::EXTENSION:
      AppendValue(*static_cast<const arrow::ExtensionArray&>(array).storage(), i, out);
      return;
    default:
      break;
  }
  auto scalar = array.GetScalar(i);
  if (scalar.ok()) {
    AppendQuoted((*scalar)->ToString(), out);
  } else {
    out += "null";
  }
}

}  // namespace

Status AppendRows(const arrow::RecordBatch& batch, std::size_t max_bytes, std::string_view what, std::string& out) {
  std::vector<std::string> names;
  for (int c = 0; c < batch.num_columns(); ++c) {
    MR_ARROW_TRY(what, arrow::internal::ValidateArrayFull(*Relaxed(*batch.column_data(c))));
    if (batch.column(c)->length() != batch.num_rows()) {
      return Fail(Code::kCorrupt, "{}: its columns differ in length", what);
    }
    AppendQuoted(batch.column_name(c), names.emplace_back());
  }
  for (std::int64_t row = 0; row < batch.num_rows(); ++row) {
    out += '{';
    bool first = true;
    for (int c = 0; c < batch.num_columns(); ++c) {
      const arrow::Array& column = *batch.column(c);
      if (column.IsNull(row)) continue;
      if (!std::exchange(first, false)) out += ',';
      out += names[c];
      out += ':';
      AppendValue(column, row, out);
    }
    out += "}\n";
    if (out.size() > max_bytes) {
      return Fail(
          Code::kUnsupported,
          "{}: more than {} in one piece cannot be held; write the data in smaller record batches or row groups", what,
          FormatBytes(max_bytes));
    }
  }
  return {};
}

Result<std::vector<int>> ChooseColumns(const std::vector<std::string>& names, const std::vector<std::string>& fields,
                                       std::string_view what) {
  std::vector<int> chosen;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (fields.empty() || std::ranges::find(fields, names[i]) != fields.end()) chosen.push_back(static_cast<int>(i));
  }
  if (chosen.empty()) {
    return Fail(Code::kInvalidArgument, "{}: no column \"{}\"; it has {}", what, fmt::join(fields, "\", \""),
                fmt::join(names, ", "));
  }
  return chosen;
}

}  // namespace millrace::data::arrow_format
