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

std::string EventWithTime(WallTime time) {
  std::string event;
  AppendTag(event, 1, kFixed64);
  AppendFixed(event, std::chrono::duration<double>(time.time_since_epoch()).count());
  return event;
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
  std::string event = EventWithTime(time);
  AppendTag(event, 2, kVarint);
  AppendVarint(event, static_cast<std::uint64_t>(step));
  AppendString(event, 5, summary);
  return Record(event);
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
  if (pending_bytes_ >= kMaxPending) {
    dropped_ += scalars.size();
    return;
  }
  if (files_.empty() || files_.back().bytes.size() >= roll_bytes_) {
    files_.push_back({.key = fmt::format("{}.{:04}", name_, next_number_++), .bytes = EventFileHeader(clock_.Wall())});
    pending_bytes_ += files_.back().bytes.size();
  }
  File& file = files_.back();
  std::string event = EventFileScalars(clock_.Wall(), step, scalars);
  file.bytes += event;
  file.changed = true;
  pending_bytes_ += event.size();
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
    return Fail(Code::kResourceExhausted, "{} TensorBoard scalars were dropped: the store took none for too long",
                dropped);
  }
  return {};
}

}  // namespace millrace::metrics
