#include "millrace/checkpoint/save/snapshot.h"

#include <algorithm>
#include <latch>
#include <thread>
#include <tuple>

#include "millrace/base/copy.h"
#include "millrace/checkpoint/format/safetensors.h"

namespace millrace::checkpoint {
namespace {

/// Below it one thread copies faster than several are woken.
constexpr std::uint64_t kParallelFrom = 16 * kMiB;
/// A few cores saturate the memory of a machine.
constexpr int kMaxCopyThreads = 4;

Status CheckPiece(const SavePiece& piece) {
  Status shape = piece.meta.Check(piece.name);
  if (!shape) return Fail(shape.error().WithCode(Code::kInvalidArgument));
  Status box = CheckBox(piece.box, piece.meta.shape);
  if (!box) return Fail(box.error().WithCode(Code::kInvalidArgument).Context(fmt::format("tensor {}", piece.name)));
  const std::uint64_t element = DTypeBytes(piece.meta.dtype), elements = piece.bytes.size() / element;
  const std::uint64_t total = ElementsOf(piece.box, piece.meta.shape);
  if (piece.bytes.size() % element != 0 || piece.begin > total || elements > total - piece.begin) {
    return Fail(Code::kInvalidArgument,
                "cannot save {} bytes from element {} of tensor {}: it has {} elements of {} bytes", piece.bytes.size(),
                piece.begin, piece.name, total, element);
  }
  return {};
}

/// Largest elements first, so that every tensor is aligned in the file.
std::vector<const SavePiece*> InFileOrder(const std::vector<SavePiece>& pieces) {
  std::vector<const SavePiece*> ordered;
  for (const SavePiece& piece : pieces) ordered.push_back(&piece);
  std::sort(ordered.begin(), ordered.end(), [](const SavePiece* a, const SavePiece* b) {
    const std::uint64_t element_a = DTypeBytes(a->meta.dtype), element_b = DTypeBytes(b->meta.dtype);
    if (element_a != element_b) return element_a > element_b;
    return std::tie(a->name, a->box, a->begin) < std::tie(b->name, b->box, b->begin);
  });
  return ordered;
}

SafetensorsEntry EntryOf(const SavePiece& piece) {
  const std::uint64_t elements = piece.bytes.size() / DTypeBytes(piece.meta.dtype);
  SafetensorsEntry entry{piece.name, piece.meta};
  if (const Box box = Simplified(piece.box, piece.meta.shape); !box.whole()) {
    entry.name += fmt::format("[{}]", ToString(box));
    entry.meta.shape.assign(box.lengths.begin(), box.lengths.end());
  }
  if (elements != entry.meta.elements()) {
    entry.name += fmt::format("[{}:{}]", piece.begin, piece.begin + elements);
    entry.meta.shape = {static_cast<std::int64_t>(elements)};
  }
  return entry;
}

}  // namespace

Snapshot::Snapshot(MemoryBudget& budget)
    : budget_(budget), threads_(std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxCopyThreads)) {
  if (threads_ > 1) copiers_ = std::make_unique<ThreadPool>("ckpt-copy", threads_ - 1, threads_);
}

Status Snapshot::Reserve(std::uint64_t bytes) {
  if (bytes > reservation_.bytes()) {
    file_ = {};
    buffer_.Free();
    reservation_.Release();
    auto reserved = budget_.Acquire(bytes);
    if (!reserved) {
      return Fail(reserved.error().Context(fmt::format(
          "this rank's part of a checkpoint takes {} bytes of memory (try a larger --memory-budget)", bytes)));
    }
    reservation_ = *std::move(reserved);
  }
  return buffer_.Grow(bytes);
}

bool Snapshot::FileLayout::Fits(const std::vector<SavePiece>& others) const {
  if (id == 0 || others.size() != pieces.size()) return false;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const SavePiece &a = pieces[i], &b = others[i];
    if (sizes[i] != b.bytes.size() || a.begin != b.begin || a.name != b.name || a.meta != b.meta || a.box != b.box)
      return false;
  }
  return true;
}

Status Snapshot::MakeFileLayout(const std::vector<SavePiece>& pieces) {
  layout_ = {};
  FileLayout layout{.id = next_id_++};
  layout.places.resize(pieces.size());
  std::vector<const SavePiece*> ordered = InFileOrder(pieces);
  std::vector<SafetensorsEntry> entries;
  for (const SavePiece* piece : ordered) {
    MR_TRY(CheckPiece(*piece));
    auto [tensor, added] = layout.part.tensors.emplace(piece->name, piece->meta);
    if (tensor->second != piece->meta)
      return Fail(Code::kInvalidArgument, "tensor {} is given two shapes", piece->name);
    entries.push_back(EntryOf(*piece));
  }
  if (!pieces.empty()) {
    layout.header = MakeSafetensorsHeader(entries);
    layout.file_size = entries.back().offset + ordered.back()->bytes.size();
  }
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    const SavePiece& piece = *ordered[i];
    layout.places[&piece - pieces.data()] = entries[i].offset;
    if (piece.bytes.empty()) continue;
    layout.part.slices.push_back({piece.name, piece.begin, piece.bytes.size() / DTypeBytes(piece.meta.dtype), "",
                                  entries[i].offset, Simplified(piece.box, piece.meta.shape)});
  }
  for (const SavePiece& piece : pieces) {
    layout.sizes.push_back(piece.bytes.size());
    layout.pieces.push_back({piece.name, piece.meta, piece.begin, {}, piece.box});
  }
  layout_ = std::move(layout);
  return {};
}

Status Snapshot::Take(const std::vector<SavePiece>& pieces) {
  file_ = {};
  if (!layout_.Fits(pieces)) MR_TRY(MakeFileLayout(pieces));
  if (pieces.empty()) return {};
  MR_TRY(Reserve(layout_.file_size));
  std::byte* file = buffer_.span().data();
  std::vector<CopyStep> copies{{file, AsBytes(layout_.header).data(), layout_.header.size()}};
  for (std::size_t i = 0; i < pieces.size(); ++i)
    if (!pieces[i].bytes.empty())
      copies.push_back({file + layout_.places[i], pieces[i].bytes.data(), pieces[i].bytes.size()});
  std::sort(copies.begin(), copies.end(), [](const CopyStep& a, const CopyStep& b) { return a.to < b.to; });
  RunCopies(copies);
  file_ = {file, layout_.file_size};
  return {};
}

void Snapshot::RunCopies(const std::vector<CopyStep>& copies) {
  const std::uint64_t total = static_cast<std::uint64_t>(copies.back().to - copies.front().to) + copies.back().bytes;
  const int threads = total < kParallelFrom ? 1 : threads_;
  const std::byte* start = copies.front().to;
  // Thread i copies what falls into the i-th of equal parts of the file.
  auto copy_part = [&](int i) {
    const std::byte* begin = start + total / threads * i;
    const std::byte* end = i + 1 == threads ? start + total : start + total / threads * (i + 1);
    for (const CopyStep& copy : copies) {
      std::byte* to = copy.to < begin ? copy.to + std::min<std::size_t>(begin - copy.to, copy.bytes) : copy.to;
      std::size_t skipped = to - copy.to;
      if (to >= end || skipped == copy.bytes) continue;
      CopyNonTemporal(to, {copy.from + skipped, std::min<std::size_t>(end - to, copy.bytes - skipped)});
    }
  };
  std::latch others(threads - 1);
  for (int i = 1; i < threads; ++i) {
    copiers_->Submit([&, i] {
      copy_part(i);
      others.count_down();
    });
  }
  copy_part(0);
  others.wait();
}

}  // namespace millrace::checkpoint
