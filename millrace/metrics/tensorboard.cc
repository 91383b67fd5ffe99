#include "millrace/metrics/tensorboard.h"

#include <fmt/format.h>

#include <chrono>
#include <deque>

#include "millrace/base/hash/crc.h"
#include "millrace/base/hash/random.h"
#include "millrace/object/blocking.h"

namespace millrace::metrics {
namespace {

/// The bytes of events that may wait for a flush. Beyond this, new events are dropped, and the next flush reports it.
constexpr std::uint64_t kMaxPending = 64 * kMiB;  // bounds memory while the store fails: some 100,000 steps

// Protocol-buffer wire types.
constexpr int kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5;

template <class T>
void AppendFixed(std::string& out, T value) {
  char bytes[sizeof value];
  StoreLittle(AsWritableBytes(bytes).data(), value);
  out.append(bytes, sizeof bytes);
}

void AppendVarint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void AppendTag(std::string& out, int field, int wire_type) {
  AppendVarint(out, static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(wire_type));
}

void AppendNumber(std::string& out, int field, std::uint64_t value) {
  AppendTag(out, field, kVarint);
  AppendVarint(out, value);
}

void AppendDouble(std::string& out, int field, double value) {
  AppendTag(out, field, kFixed64);
  AppendFixed(out, value);
}

void AppendString(std::string& out, int field, std::string_view text) {
  AppendTag(out, field, kLengthDelimited);
  AppendVarint(out, text.size());
  out += text;
}

std::uint32_t MaskedCrc(std::string_view bytes) {
  std::uint32_t crc = Crc32c(AsBytes(bytes));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

std::string Record(std::string_view payload) {
  std::string record;
  record.reserve(payload.size() + 16);
  AppendFixed<std::uint64_t>(record, payload.size());
  AppendFixed(record, MaskedCrc(record));
  record += payload;
  AppendFixed(record, MaskedCrc(payload));
  return record;
}

double SecondsSince1970(WallTime time) { return std::chrono::duration<double>(time.time_since_epoch()).count(); }

std::string EventWithTime(WallTime time) {
  std::string event;
  AppendDouble(event, 1, SecondsSince1970(time));
  return event;
}

std::string SummaryRecord(WallTime time, std::int64_t step, std::string_view summary) {
  std::string event = EventWithTime(time);
  AppendNumber(event, 2, static_cast<std::uint64_t>(step));
  AppendString(event, 5, summary);
  return Record(event);
}

/// Returns a summary with a tensor for one of TensorBoard's plugins.
std::string TensorSummary(std::string_view tag, std::string_view tensor, std::string_view plugin,
                          std::string_view content) {
  constexpr std::uint64_t kTensorClass = 2;  // DataClass.DATA_CLASS_TENSOR
  std::string plugin_data, metadata, value, summary;
  AppendString(plugin_data, 1, plugin);
  AppendString(plugin_data, 2, content);
  AppendString(metadata, 1, plugin_data);
  AppendNumber(metadata, 4, kTensorClass);
  AppendString(value, 1, tag);
  AppendString(value, 8, tensor);
  AppendString(value, 9, metadata);
  AppendString(summary, 1, value);
  return summary;
}

/// The HParams plugin reads the metadata alone; its tensor has no element.
std::string HyperParameterRecord(WallTime time, std::string_view tag, std::string_view plugin_data) {
  constexpr std::uint64_t kFloat = 1;  // DataType.DT_FLOAT
  std::string dimension, shape, tensor;
  AppendNumber(dimension, 1, 0);
  AppendString(shape, 2, dimension);
  AppendNumber(tensor, 1, kFloat);
  AppendString(tensor, 2, shape);
  return SummaryRecord(time, 0, TensorSummary(tag, tensor, "hparams", plugin_data));
}

}  // namespace

std::string EventFileHeader(WallTime time) {
  std::string event = EventWithTime(time);
  AppendString(event, 3, "brain.Event:2");
  return Record(event);
}

std::string EventFileScalars(WallTime time, std::int64_t step, std::initializer_list<Scalar> scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    std::string entry;
    AppendString(entry, 1, tag);
    AppendTag(entry, 2, kFixed32);
    AppendFixed(entry, value);
    AppendString(summary, 1, entry);
  }
  return SummaryRecord(time, step, summary);
}

std::string EventFileText(WallTime time, std::int64_t step, std::string_view tag, std::string_view markdown) {
  constexpr std::uint64_t kString = 7;  // DataType.DT_STRING
  std::string tensor;
  AppendNumber(tensor, 1, kString);
  AppendString(tensor, 2, "");  // the shape of a scalar
  AppendString(tensor, 8, markdown);
  return SummaryRecord(time, step, TensorSummary(tag, tensor, "text", ""));
}

std::string EventFileHistogram(WallTime time, std::int64_t step, std::string_view tag,
                               std::span<const HistogramBucket> buckets) {
  constexpr std::uint64_t kDouble = 2;  // DataType.DT_DOUBLE
  std::string rows, columns, shape, content, tensor;
  AppendNumber(rows, 1, buckets.size());
  AppendNumber(columns, 1, 3);
  AppendString(shape, 2, rows);
  AppendString(shape, 2, columns);
  for (const auto& [left, right, count] : buckets) {
    AppendFixed(content, left);
    AppendFixed(content, right);
    AppendFixed(content, static_cast<double>(count));
  }
  AppendNumber(tensor, 1, kDouble);
  AppendString(tensor, 2, shape);
  AppendString(tensor, 4, content);
  return SummaryRecord(time, step, TensorSummary(tag, tensor, "histograms", ""));
}

std::string EventFileSessionStart(WallTime time, std::string_view run, const HyperParameters& parameters) {
  std::string session, plugin_data;
  for (const auto& [name, choice] : parameters) {
    std::string value, entry;
    if (const auto* number = std::get_if<double>(&choice)) {
      AppendDouble(value, 2, *number);
    } else {
      AppendString(value, 3, std::get<std::string>(choice));
    }
    AppendString(entry, 1, name);
    AppendString(entry, 2, value);
    AppendString(session, 1, entry);
  }
  AppendString(session, 4, run);
  AppendDouble(session, 5, SecondsSince1970(time));
  AppendString(plugin_data, 3, session);
  return HyperParameterRecord(time, "_hparams_/session_start_info", plugin_data);
}

std::string EventFileSessionEnd(WallTime time) {
  constexpr std::uint64_t kSuccess = 1;  // Status.STATUS_SUCCESS
  std::string session, plugin_data;
  AppendNumber(session, 1, kSuccess);
  AppendDouble(session, 2, SecondsSince1970(time));
  AppendString(plugin_data, 4, session);
  return HyperParameterRecord(time, "_hparams_/session_end_info", plugin_data);
}

Result<std::unique_ptr<EventWriter>> EventWriter::Open(object::Connection& connection, std::string_view url_prefix,
                                                       Options options, Clock& clock) {
  object::Location location = MR_TRY(object::Locate(connection, url_prefix));
  std::string name = location.key;
  while (name.ends_with('/')) name.pop_back();
  if (!name.empty()) name += '/';
  auto seconds = std::chrono::duration_cast<std::chrono::seconds>(clock.Wall().time_since_epoch()).count();
  name += fmt::format("events.out.tfevents.{:010}.{}", seconds, SecureHex(4));
  if (!options.suffix.empty()) name += "." + options.suffix;
  return std::unique_ptr<EventWriter>(new EventWriter(std::move(location), std::move(name), options.roll_bytes, clock));
}

EventWriter::EventWriter(object::Location location, std::string name, std::uint64_t roll_bytes, Clock& clock)
    : location_(std::move(location)), name_(std::move(name)), roll_bytes_(roll_bytes), clock_(clock) {}

void EventWriter::Add(std::int64_t step, std::initializer_list<Scalar> scalars) {
  AddRecord(EventFileScalars(clock_.Wall(), step, scalars), scalars.size());
}

void EventWriter::AddText(std::int64_t step, std::string_view tag, std::string_view markdown) {
  AddRecord(EventFileText(clock_.Wall(), step, tag, markdown), 1);
}

void EventWriter::AddHistogram(std::int64_t step, std::string_view tag, std::span<const HistogramBucket> buckets) {
  AddRecord(EventFileHistogram(clock_.Wall(), step, tag, buckets), 1);
}

void EventWriter::AddSessionStart(std::string_view run, const HyperParameters& parameters) {
  AddRecord(EventFileSessionStart(clock_.Wall(), run, parameters), 1);
}

void EventWriter::AddSessionEnd() { AddRecord(EventFileSessionEnd(clock_.Wall()), 1); }

/// `values` is how many are lost if the record is dropped.
void EventWriter::AddRecord(std::string_view record, std::uint64_t values) {
  if (pending_bytes_ >= kMaxPending) {
    dropped_ += values;
    return;
  }
  if (files_.empty() || files_.back().bytes.size() >= roll_bytes_) {
    files_.push_back({.key = fmt::format("{}.{:04}", name_, next_number_++), .bytes = EventFileHeader(clock_.Wall())});
    pending_bytes_ += files_.back().bytes.size();
  }
  File& file = files_.back();
  file.bytes += record;
  file.changed = true;
  pending_bytes_ += record.size();
}

Status EventWriter::Flush(object::Call call) {
  while (!files_.empty()) {
    File& file = files_.front();
    if (file.changed) {
      auto put = object::Put(*location_.store, file.key, AsBytes(file.bytes), {}, call);
      if (!put) {
        return Fail(
            put.error().Context(fmt::format("writing TensorBoard events to {}/{} (they are kept for the next flush)",
                                            location_.store->Describe(), file.key)));
      }
      file.changed = false;
    }
    if (files_.size() == 1 && file.bytes.size() < roll_bytes_) break;
    pending_bytes_ -= file.bytes.size();
    files_.pop_front();
  }
  if (std::uint64_t dropped = std::exchange(dropped_, 0); dropped > 0) {
    return Fail(Code::kResourceExhausted, "{} TensorBoard values were dropped: the store took none for too long",
                dropped);
  }
  return {};
}

}  // namespace millrace::metrics
