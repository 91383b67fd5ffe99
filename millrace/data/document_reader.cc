#include "millrace/data/document_reader.h"

#include <algorithm>
#include <cstring>

#include "millrace/object/blocking.h"

namespace millrace::data {
namespace {

constexpr std::uint64_t kReadBytes = 4 * kMiB;

}  // namespace

Result<DocumentReader> DocumentReader::Open(object::Connection& connection, std::span<const Source> sources,
                                            const RecordTemplate& record_template, object::Call call) {
  ResolvedSources resolved = MR_TRY(ResolveSources(connection, sources, call));
  for (const DataObject& object : resolved.objects) {
    if (object.token_bytes > 0) return Fail(Code::kInvalidArgument, "{}: token ids hold no text", object.url);
  }
  return DocumentReader(std::move(resolved), record_template, std::move(call));
}

Result<bool> DocumentReader::Next(std::string& document) {
  while (object_ < sources_.objects.size()) {
    const DataObject& object = sources_.objects[object_];
    std::string_view line;
    if (!MR_TRY(NextLine(object, line))) {
      bytes_ += object.info.size;
      ++object_;
      fetched_ = begin_ = end_ = 0;
      continue;
    }
    if (IsBlank(line)) continue;
    auto parsed = parser_.Parse(line);
    if (!parsed) {
      ++broken_;
      continue;
    }
    document = *parsed;
    ++documents_;
    return true;
  }
  return false;
}

Result<bool> DocumentReader::NextLine(const DataObject& object, std::string_view& line) {
  std::size_t searched = 0;
  while (true) {
    std::string_view rest = AsText(buffer_.span().subspan(begin_, end_ - begin_));
    std::size_t newline = rest.find('\n', searched);
    bool at_end = fetched_ == object.info.size;
    if (newline == rest.npos && !at_end) {
      searched = rest.size();
      if (rest.size() > kMaxRecordBytes) {
        skipping_ = true;
        begin_ = end_;
        searched = 0;
      }
      MR_TRY(Fill(object));
      continue;
    }
    if (rest.empty() && at_end) {
      broken_ += std::exchange(skipping_, false);
      return false;
    }
    line = rest.substr(0, newline);
    begin_ += newline == rest.npos ? rest.size() : newline + 1;
    if (!std::exchange(skipping_, false)) return true;
    ++broken_;
    searched = 0;
  }
}

Status DocumentReader::Fill(const DataObject& object) {
  std::size_t kept = end_ - begin_;
  std::uint64_t more = std::min(kReadBytes, object.info.size - fetched_);
  if (buffer_.size() < kept + more) {
    Buffer larger(kept + std::max<std::uint64_t>(kReadBytes, kept));
    if (kept > 0) std::memcpy(larger.data(), buffer_.data() + begin_, kept);
    buffer_ = std::move(larger);
  } else if (kept > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, kept);
  }
  begin_ = 0;
  end_ = kept;
  MR_TRY(ReadRange(object, fetched_, buffer_.span().subspan(kept, more), "reading", call_));
  fetched_ += more;
  end_ += more;
  return {};
}

}  // namespace millrace::data
