#include "millrace/data/hdf5/hdf5_group.h"

#include <algorithm>
#include <utility>

namespace millrace::data {
namespace {

constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
// Limits of what a file of samples has. Guesses, far above six data sets in one group.
constexpr std::uint64_t kMaxHeaderBlock = 1 * kMiB;  ///< bytes of one block of an object header
constexpr std::size_t kMaxHeaderBlocks = 64;
constexpr std::uint64_t kMaxHeapBytes = 1 * kMiB;  ///< names of a group
constexpr std::uint64_t kMaxMembers = 10'000;

bool IsKnown(std::uint16_t type) {
  using enum Hdf5MessageType;
  for (Hdf5MessageType known :
       {kDataspace, kLinkInfo, kDatatype, kLink, kLayout, kFilters, kContinuation, kSymbolTable}) {
    if (static_cast<std::uint16_t>(known) == type) return true;
  }
  return false;
}

/// A block of an object header that is still to be read.
struct HeaderBlock {
  std::uint64_t address = 0, bytes = 0;
};

/// Reads an object header and its continuations. One thread.
class HeaderReader {
 public:
  explicit HeaderReader(MetadataReader& file) : file_(file) {}

  Result<std::vector<Hdf5Message>> Read(std::uint64_t address) {
    constexpr std::uint64_t kFirstBytes = 16;  // of both versions; a header of version 2 has more than these
    const Buffer start = MR_TRY(file_.Read(address, kFirstBytes));
    FieldCursor cursor(start.span());
    if (AsText(start).starts_with("OHDR")) {
      MR_TRY(BeginSecondVersion(address));
    } else if (cursor.U8() == 1) {
      cursor.Skip(7);  // reserved, number of messages, reference count
      blocks_.push_back({address + kFirstBytes, cursor.U32()});
    } else {
      return file_.Corrupt("an object has no header");
    }
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if (i == kMaxHeaderBlocks || blocks_[i].bytes > kMaxHeaderBlock) return file_.Corrupt("an endless header");
      const Buffer block = MR_TRY(file_.Read(blocks_[i].address, blocks_[i].bytes));
      ByteSpan body = block.span();
      if (second_version_ && i > 0) {  // "OCHK", messages, checksum
        if (body.size() < 8 || !AsText(body).starts_with("OCHK")) return file_.Corrupt("a header is cut off");
        body = body.subspan(4, body.size() - 8);
      }
      MR_TRY(ReadMessages(body));
    }
    return std::move(messages_);
  }

 private:
  Status BeginSecondVersion(std::uint64_t address) {
    constexpr std::uint64_t kMaxBytes = 4 + 1 + 1 + 16 + 4 + 8;  // in front of the messages
    const Buffer start = MR_TRY(file_.Read(address, std::min(kMaxBytes, file_.file_bytes() - address)));
    FieldCursor cursor(start.span());
    cursor.Skip(4);
    const std::uint8_t version = cursor.U8(), flags = cursor.U8();
    if (version != 2) return file_.Unsupported("it has object headers of another version");
    if ((flags & 0x20) != 0) cursor.Skip(16);  // times
    if ((flags & 0x10) != 0) cursor.Skip(4);   // limits of attribute storage
    const std::uint64_t bytes = cursor.Uint(std::size_t{1} << (flags & 3));
    if (!cursor.ok()) return file_.Corrupt("a header is cut off");
    second_version_ = true;
    ordered_ = (flags & 0x04) != 0;
    blocks_.push_back({address + (start.size() - cursor.left()), bytes});
    return {};
  }

  Status ReadMessages(ByteSpan body) {
    FieldCursor cursor(body);
    const std::size_t head = second_version_ ? (ordered_ ? 6 : 4) : 8;
    while (cursor.left() >= head) {  // fewer bytes are a gap
      const std::uint16_t type = second_version_ ? cursor.U8() : cursor.U16();
      const std::uint16_t bytes = cursor.U16();
      const std::uint8_t flags = cursor.U8();
      cursor.Skip(head - (second_version_ ? 4 : 5));
      const ByteSpan content = cursor.Bytes(bytes);
      if (!cursor.ok()) return file_.Corrupt("a header is cut off");
      if (!IsKnown(type)) continue;
      if ((flags & 2) != 0) return file_.Unsupported("it shares descriptions between objects");
      const auto known = static_cast<Hdf5MessageType>(type);
      if (known == Hdf5MessageType::kContinuation) {
        FieldCursor place(content);
        const std::uint64_t address = place.U64();
        blocks_.push_back({address, place.U64()});
        continue;
      }
      Buffer copy(content.size());
      std::ranges::copy(content, copy.data());
      messages_.push_back({known, std::move(copy)});
    }
    return {};
  }

  MetadataReader& file_;
  std::vector<HeaderBlock> blocks_;
  std::vector<Hdf5Message> messages_;
  bool second_version_ = false;
  bool ordered_ = false;  ///< messages have a number of two bytes
};

/// Returns the address of the outermost group's object header.
Result<std::uint64_t> RootAddress(MetadataReader& file) {
  constexpr std::uint64_t kLeast = 48, kMax = 96 + 8;  // bytes of a superblock
  if (file.file_bytes() < kLeast) return file.Corrupt("it is too short");
  const Buffer start = MR_TRY(file.Read(0, std::min(kMax, file.file_bytes())));
  if (!AsText(start).starts_with(kSignature)) return file.Corrupt("it does not begin as HDF5 files do");
  FieldCursor cursor(start.span());
  cursor.Skip(kSignature.size());
  const std::uint8_t version = cursor.U8();
  std::uint8_t address_bytes = 0, length_bytes = 0;
  if (version <= 1) {
    cursor.Skip(4);  // versions of parts
    address_bytes = cursor.U8();
    length_bytes = cursor.U8();
    cursor.Skip(version == 0 ? 9 : 13);  // sizes of B-tree nodes, flags
  } else if (version <= 3) {
    address_bytes = cursor.U8();
    length_bytes = cursor.U8();
    cursor.Skip(1);
  } else {
    return file.Unsupported("it is of a newer version");
  }
  if (address_bytes != 8 || length_bytes != 8) return file.Unsupported("its addresses do not have 8 bytes");
  if (cursor.U64() != 0) return file.Unsupported("other data are in front of it");
  cursor.Skip(version <= 1 ? 32 : 16);  // other places; in front of versions 0 and 1 also the name of the group
  const std::uint64_t root = cursor.U64();
  if (!cursor.ok()) return file.Corrupt("it is cut off");
  return root;
}

using Members = std::map<std::string, std::uint64_t>;

Status ReadSymbolTable(MetadataReader& file, ByteSpan message, Members& members) {
  FieldCursor cursor(message);
  const std::uint64_t tree = cursor.U64(), heap_at = cursor.U64();
  if (!cursor.ok()) return file.Corrupt("its group has no members");
  constexpr std::uint64_t kHeapHead = 32;
  const Buffer head = MR_TRY(file.Read(heap_at, kHeapHead));
  FieldCursor heap(head.span());
  if (!AsText(head).starts_with("HEAP")) return file.Corrupt("the names of its members are missing");
  heap.Skip(8);
  const std::uint64_t name_bytes = heap.U64();
  heap.Skip(8);
  if (name_bytes > kMaxHeapBytes) return file.Corrupt("the names of its members are too long");
  const Buffer names = MR_TRY(file.Read(heap.U64(), name_bytes));

  constexpr std::size_t kEntryBytes = 40;
  std::uint64_t seen = 0;
  auto leaf = [&](FieldCursor body, std::uint16_t entries) -> Status {
    for (std::uint16_t i = 0; i < entries; ++i) {
      body.Skip(8);
      const std::uint64_t at = body.U64();
      const Buffer node_head = MR_TRY(file.Read(at, 8));
      if (!AsText(node_head).starts_with("SNOD")) return file.Corrupt("a list of members is missing");
      const std::uint16_t symbols = LoadLittle<std::uint16_t>(node_head.data() + 6);
      seen += symbols;
      if (seen > kMaxMembers) return file.Corrupt("it has too many members");
      const Buffer node = MR_TRY(file.Read(at + 8, symbols * kEntryBytes));
      FieldCursor entry(node.span());
      for (std::uint16_t s = 0; s < symbols; ++s) {
        const std::uint64_t name_at = entry.U64(), address = entry.U64();
        entry.Skip(kEntryBytes - 16);
        if (name_at >= names.size()) return file.Corrupt("a member has no name");
        std::string_view name = AsText(names).substr(name_at);
        members[std::string(name.substr(0, name.find('\0')))] = address;
      }
    }
    return {};
  };
  return VisitBtreeLeaves(file, tree, 0, 8, kMaxMembers, leaf);
}

/// Adds a member that a message of the group names. Ignores soft and external links.
Status ReadLink(MetadataReader& file, ByteSpan message, Members& members) {
  FieldCursor cursor(message);
  const std::uint8_t version = cursor.U8(), flags = cursor.U8();
  const std::uint8_t kind = (flags & 0x08) != 0 ? cursor.U8() : 0;
  if ((flags & 0x04) != 0) cursor.Skip(8);  // order of creation
  if ((flags & 0x10) != 0) cursor.Skip(1);  // character set
  const std::uint64_t name_bytes = cursor.Uint(std::size_t{1} << (flags & 3));
  const ByteSpan name = cursor.Bytes(name_bytes);
  if (kind != 0) return {};
  const std::uint64_t address = cursor.U64();
  if (version != 1 || !cursor.ok()) return file.Corrupt("a link of its group is cut off");
  members[std::string(AsText(name))] = address;
  return {};
}

}  // namespace

Result<std::vector<Hdf5Message>> ReadObjectHeader(MetadataReader& file, std::uint64_t address) {
  return HeaderReader(file).Read(address);
}

Result<std::map<std::string, std::uint64_t>> ReadRootGroup(MetadataReader& file) {
  const std::vector<Hdf5Message> messages = MR_TRY(ReadObjectHeader(file, MR_TRY(RootAddress(file))));
  Members members;
  for (const Hdf5Message& message : messages) {
    if (message.type == Hdf5MessageType::kSymbolTable) MR_TRY(ReadSymbolTable(file, message.bytes.span(), members));
    if (message.type == Hdf5MessageType::kLink) MR_TRY(ReadLink(file, message.bytes.span(), members));
    if (message.type != Hdf5MessageType::kLinkInfo) continue;
    FieldCursor cursor(message.bytes.span());
    cursor.Skip(1);
    if ((cursor.U8() & 1) != 0) cursor.Skip(8);  // order of creation
    if (cursor.U64() != kNoAddress) return file.Unsupported("its group has more members than fit into its header");
  }
  return members;
}

Status VisitBtreeLeaves(MetadataReader& file, std::uint64_t root, std::uint8_t type, std::size_t key_bytes,
                        std::uint64_t most,
                        const std::function<Status(FieldCursor body, std::uint16_t entries)>& leaf) {
  constexpr std::size_t kHead = 24, kChildBytes = 8;
  constexpr int kAnyLevel = -1;
  struct Node {
    std::uint64_t address;
    int level;
  };
  std::vector<Node> open = {{root, kAnyLevel}};
  std::uint64_t seen = 0;
  while (!open.empty()) {
    const Node node = open.back();
    open.pop_back();
    const Buffer head = MR_TRY(file.Read(node.address, kHead));
    FieldCursor cursor(head.span());
    if (!AsText(head).starts_with("TREE")) return file.Corrupt("a table of its places is missing");
    cursor.Skip(4);
    const std::uint8_t node_type = cursor.U8(), level = cursor.U8();
    const std::uint16_t entries = cursor.U16();
    if (node_type != type || (node.level != kAnyLevel && level != node.level)) {
      return file.Corrupt("a table of its places contradicts itself");
    }
    seen += entries;
    if (seen > 2 * most + 64) return file.Corrupt("a table has more places than the file");
    const Buffer body = MR_TRY(file.Read(node.address + kHead, entries * (key_bytes + kChildBytes) + key_bytes));
    if (level == 0) {
      MR_TRY(leaf(FieldCursor(body.span()), entries));
      continue;
    }
    // The last child is on the stack first, so that the first is visited first.
    for (std::uint16_t i = entries; i-- > 0;) {
      const std::size_t at = key_bytes + i * (key_bytes + kChildBytes);
      open.push_back({LoadLittle<std::uint64_t>(body.data() + at), level - 1});
    }
  }
  return {};
}

}  // namespace millrace::data
