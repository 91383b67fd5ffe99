#include "millrace/data/arrow/json_rows.h"

#include <arrow/array.h>
#include <arrow/array/validate.h>
#include <arrow/extension_type.h>
#include <arrow/scalar.h>
#include <arrow/type.h>
#include <arrow/util/ree_util.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "millrace/base/text.h"
#include "millrace/data/arrow/python_time.h"
#include "millrace/data/arrow/status.h"
#include "millrace/data/records/python_json.h"

namespace millrace::data::arrow_format {
namespace {

/// Returns the type with the same layout and binary values for strings. Arrow's validation then does not check UTF-8,
/// which would reject the whole batch for one bad row.
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

void AppendQuoted(std::string_view text, RecordLines& out) {
  out.Append('"');
  out.AppendText(text);
  out.Append('"');
}

template <class Array>
auto ViewOf(const arrow::Array& array, std::int64_t i) {
  return static_cast<const Array&>(array).GetView(i);
}

void AppendValue(const arrow::Array& array, std::int64_t i, RecordLines& out);

template <class Number>
void AppendNumber(Number value, RecordLines& out) {
  // As Python's json module does: NaN, Infinity, and a float printed as a double.
  if constexpr (std::is_floating_point_v<Number>) {
    if (std::isnan(value)) return out.Append("NaN");
    if (std::isinf(value)) return out.Append(value < 0 ? "-Infinity" : "Infinity");
    std::string printed;
    AppendPythonFloat(double{value}, printed);
    out.Append(printed);
  } else {
    out.Append(fmt::format_int(value).c_str());
  }
}

template <class Array>
void AppendBytes(const arrow::Array& array, std::int64_t i, RecordLines& out) {
  std::string_view bytes = ViewOf<Array>(array, i);
  if (IsValidUtf8(bytes)) {
    AppendQuoted(bytes, out);
  } else {
    out.Append("null");
  }
}

template <class Array>
void AppendList(const arrow::Array& array, std::int64_t i, RecordLines& out) {
  const auto& list = static_cast<const Array&>(array);
  out.Append('[');
  std::int64_t first = list.value_offset(i), end = first + list.value_length(i);
  for (std::int64_t k = first; k < end && !out.is_full(); ++k) {
    if (k > first) out.Append(',');
    AppendValue(*list.values(), k, out);
  }
  out.Append(']');
}

void AppendStruct(const arrow::StructArray& array, std::int64_t i, RecordLines& out) {
  const auto& fields = array.struct_type()->fields();
  out.Append('{');
  bool first = true;
  for (int k = 0; k < array.num_fields(); ++k) {
    const arrow::Array& child = *array.field(k);
    if (child.IsNull(i)) continue;
    if (!std::exchange(first, false)) out.Append(',');
    AppendQuoted(fields[k]->name(), out);
    out.Append(':');
    AppendValue(child, i, out);
  }
  out.Append('}');
}

void AppendMap(const arrow::MapArray& map, std::int64_t i, RecordLines& out) {
  auto key_type = map.keys()->type_id();
  if (key_type != arrow::Type::STRING && key_type != arrow::Type::LARGE_STRING) {
    AppendList<arrow::ListArray>(map, i, out);
    return;
  }
  out.Append('{');
  std::int64_t first = map.value_offset(i), end = first + map.value_length(i);
  for (std::int64_t k = first; k < end && !out.is_full(); ++k) {
    if (k > first) out.Append(',');
    AppendValue(*map.keys(), k, out);
    out.Append(':');
    AppendValue(*map.items(), k, out);
  }
  out.Append('}');
}

/// Returns false, and appends nothing, if the type is neither a number nor a Boolean.
bool AppendIfNumber(const arrow::Array& array, std::int64_t i, RecordLines& out) {
  using arrow::Type;
  switch (array.type_id()) {
    case Type::BOOL:
      out.Append(ViewOf<arrow::BooleanArray>(array, i) ? "true" : "false");
      return true;
    case Type::INT8:
      AppendNumber(int{ViewOf<arrow::Int8Array>(array, i)}, out);
      return true;
    case Type::INT16:
      AppendNumber(int{ViewOf<arrow::Int16Array>(array, i)}, out);
      return true;
    case Type::INT32:
      AppendNumber(ViewOf<arrow::Int32Array>(array, i), out);
      return true;
    case Type::INT64:
      AppendNumber(ViewOf<arrow::Int64Array>(array, i), out);
      return true;
    case Type::UINT8:
      AppendNumber(unsigned{ViewOf<arrow::UInt8Array>(array, i)}, out);
      return true;
    case Type::UINT16:
      AppendNumber(unsigned{ViewOf<arrow::UInt16Array>(array, i)}, out);
      return true;
    case Type::UINT32:
      AppendNumber(ViewOf<arrow::UInt32Array>(array, i), out);
      return true;
    case Type::UINT64:
      AppendNumber(ViewOf<arrow::UInt64Array>(array, i), out);
      return true;
    case Type::HALF_FLOAT:
      AppendNumber(static_cast<float>(std::bit_cast<_Float16>(ViewOf<arrow::HalfFloatArray>(array, i))), out);
      return true;
    case Type::FLOAT:
      AppendNumber(ViewOf<arrow::FloatArray>(array, i), out);
      return true;
    case Type::DOUBLE:
      AppendNumber(ViewOf<arrow::DoubleArray>(array, i), out);
      return true;
    default:
      return false;
  }
}

/// Returns false, and appends nothing, if the type is neither a string nor bytes.
bool AppendIfText(const arrow::Array& array, std::int64_t i, RecordLines& out) {
  using arrow::Type;
  switch (array.type_id()) {
    case Type::STRING:
      AppendQuoted(ViewOf<arrow::StringArray>(array, i), out);
      return true;
    case Type::LARGE_STRING:
      AppendQuoted(ViewOf<arrow::LargeStringArray>(array, i), out);
      return true;
    case Type::STRING_VIEW:
      AppendQuoted(ViewOf<arrow::StringViewArray>(array, i), out);
      return true;
    case Type::BINARY:
      AppendBytes<arrow::BinaryArray>(array, i, out);
      return true;
    case Type::LARGE_BINARY:
      AppendBytes<arrow::LargeBinaryArray>(array, i, out);
      return true;
    case Type::BINARY_VIEW:
      AppendBytes<arrow::BinaryViewArray>(array, i, out);
      return true;
    case Type::FIXED_SIZE_BINARY:
      AppendBytes<arrow::FixedSizeBinaryArray>(array, i, out);
      return true;
    default:
      return false;
  }
}

std::int64_t PerSecond(arrow::TimeUnit::type unit) {
  switch (unit) {
    case arrow::TimeUnit::SECOND:
      return 1;
    case arrow::TimeUnit::MILLI:
      return 1'000;
    case arrow::TimeUnit::MICRO:
      return 1'000'000;
    default:
      return 1'000'000'000;
  }
}

/// Returns false, and appends nothing, if the type is neither a moment, a time of day nor a span of time.
bool AppendIfTime(const arrow::Array& array, std::int64_t i, RecordLines& out) {
  using arrow::Type;
  switch (array.type_id()) {
    case Type::TIMESTAMP: {
      const auto& type = static_cast<const arrow::TimestampType&>(*array.type());
      AppendQuoted(PrintMoment(ViewOf<arrow::TimestampArray>(array, i), PerSecond(type.unit()), type.timezone()), out);
      return true;
    }
    case Type::TIME32: {
      const auto unit = static_cast<const arrow::Time32Type&>(*array.type()).unit();
      AppendQuoted(PrintTimeOfDay(ViewOf<arrow::Time32Array>(array, i), PerSecond(unit)), out);
      return true;
    }
    case Type::TIME64: {
      const auto unit = static_cast<const arrow::Time64Type&>(*array.type()).unit();
      AppendQuoted(PrintTimeOfDay(ViewOf<arrow::Time64Array>(array, i), PerSecond(unit)), out);
      return true;
    }
    case Type::DURATION: {
      const auto unit = static_cast<const arrow::DurationType&>(*array.type()).unit();
      AppendQuoted(PrintSpan(ViewOf<arrow::DurationArray>(array, i), PerSecond(unit)), out);
      return true;
    }
    default:
      return false;
  }
}

/// Returns false, and appends nothing, if the type has no values of its own inside.
bool AppendIfNested(const arrow::Array& array, std::int64_t i, RecordLines& out) {
  using arrow::Type;
  switch (array.type_id()) {
    case Type::LIST:
      AppendList<arrow::ListArray>(array, i, out);
      return true;
    case Type::LARGE_LIST:
      AppendList<arrow::LargeListArray>(array, i, out);
      return true;
    case Type::FIXED_SIZE_LIST:
      AppendList<arrow::FixedSizeListArray>(array, i, out);
      return true;
    case Type::LIST_VIEW:
      AppendList<arrow::ListViewArray>(array, i, out);
      return true;
    case Type::LARGE_LIST_VIEW:
      AppendList<arrow::LargeListViewArray>(array, i, out);
      return true;
    case Type::MAP:
      AppendMap(static_cast<const arrow::MapArray&>(array), i, out);
      return true;
    case Type::STRUCT:
      AppendStruct(static_cast<const arrow::StructArray&>(array), i, out);
      return true;
    default:
      return false;
  }
}

/// Returns false, and appends nothing, if the value does not stand in another array that `array` refers to.
bool AppendIfReference(const arrow::Array& array, std::int64_t i, RecordLines& out) {
  using arrow::Type;
  switch (array.type_id()) {
    case Type::DICTIONARY: {
      const auto& dictionary = static_cast<const arrow::DictionaryArray&>(array);
      AppendValue(*dictionary.dictionary(), dictionary.GetValueIndex(i), out);
      return true;
    }
    case Type::RUN_END_ENCODED: {
      const auto& runs = static_cast<const arrow::RunEndEncodedArray&>(array);
      AppendValue(*runs.values(), arrow::ree_util::FindPhysicalIndex(*array.data(), i, array.offset()), out);
      return true;
    }
    case Type::SPARSE_UNION: {
      const auto& either = static_cast<const arrow::SparseUnionArray&>(array);
      AppendValue(*either.field(either.child_id(i)), i, out);
      return true;
    }
    case Type::DENSE_UNION: {
      const auto& either = static_cast<const arrow::DenseUnionArray&>(array);
      AppendValue(*either.field(either.child_id(i)), either.value_offset(i), out);
      return true;
    }
    case Type::EXTENSION:
      AppendValue(*static_cast<const arrow::ExtensionArray&>(array).storage(), i, out);
      return true;
    default:
      return false;
  }
}

void AppendValue(const arrow::Array& array, std::int64_t i, RecordLines& out) {
  if (array.IsNull(i)) {
    out.Append("null");
    return;
  }
  if (AppendIfText(array, i, out) || AppendIfNumber(array, i, out) || AppendIfTime(array, i, out) ||
      AppendIfNested(array, i, out) || AppendIfReference(array, i, out)) {
    return;
  }
  // Only types of fixed size are left: dates, decimals, intervals.
  auto scalar = array.GetScalar(i);
  if (scalar.ok()) {
    AppendQuoted((*scalar)->ToString(), out);
  } else {
    out.Append("null");
  }
}

}  // namespace

Status AppendRows(const arrow::RecordBatch& batch, std::string_view what, RecordLines& out) {
  for (int c = 0; c < batch.num_columns(); ++c) {
    MR_ARROW_TRY(what, arrow::internal::ValidateArrayFull(*Relaxed(*batch.column_data(c))));
    if (batch.column(c)->length() != batch.num_rows()) {
      return Fail(Code::kCorrupt, "{}: its columns differ in length", what);
    }
  }
  for (std::int64_t row = 0; row < batch.num_rows(); ++row) {
    out.Append('{');
    bool first = true;
    for (int c = 0; c < batch.num_columns(); ++c) {
      const arrow::Array& column = *batch.column(c);
      if (column.IsNull(row)) continue;
      if (!std::exchange(first, false)) out.Append(',');
      AppendQuoted(batch.column_name(c), out);
      out.Append(':');
      AppendValue(column, row, out);
    }
    out.Append('}');
    if (auto ended = out.EndRecord(); !ended) {
      return Fail(Code::kUnsupported, "{}: {} (pandas and pyarrow: row_group_size=1000, max_chunksize=1000)", what,
                  ended.error().message());
    }
  }
  return {};
}

Result<std::vector<int>> ChooseColumns(const std::vector<std::string>& names, const std::vector<std::string>& fields,
                                       std::string_view what) {
  std::vector<int> chosen;
  for (std::size_t i = 0; i < names.size(); ++i) {
    // The field "body.text" is in the column of that name, or in the column "body".
    const auto reads = [&](const std::string& field) { return field == names[i] || field.starts_with(names[i] + "."); };
    if (fields.empty() || std::ranges::any_of(fields, reads)) chosen.push_back(static_cast<int>(i));
  }
  if (chosen.empty()) {
    return Fail(Code::kInvalidArgument, "{}: no column \"{}\"; it has {}; name those in the template", what,
                fmt::join(fields, "\", \""), fmt::join(names, ", "));
  }
  return chosen;
}

}  // namespace millrace::data::arrow_format
