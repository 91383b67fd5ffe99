#include "millrace/checkpoint/convert/torch/pickle.h"

#include <gmock/gmock.h>

#include "millrace/base/hash/random.h"
#include "millrace/checkpoint/convert/torch/state_tree.h"
#include "millrace/checkpoint/convert/torch/torch_state.h"

namespace millrace::checkpoint {
namespace {

using ::testing::HasSubstr;

Result<Pickle> Read(std::string_view bytes) { return Pickle::Read(bytes, TorchGlobals(), "test"); }

Json RoundTrip(const Json& value) {
  const auto state = BuildState({}, Json{{"v", value}}, {});
  EXPECT_TRUE(state) << state.error().ToString();
  PickleWriter out;
  auto written = WriteState(out, *state->items.at(0), {});
  EXPECT_TRUE(written) << written.error().ToString();
  const std::string bytes = std::move(out).Finish();
  auto pickle = Read(bytes);
  EXPECT_TRUE(pickle) << pickle.error().ToString();
  auto read = ValueOf(*pickle, pickle->root());
  EXPECT_TRUE(read) << read.error().ToString();
  return read ? *read : Json();
}

TEST(PickleTest, PlainValuesComeBack) {
  for (const char* text : {"null",
                           "true",
                           "false",
                           "0",
                           "255",
                           "256",
                           "-1",
                           "-2147483649",
                           "9223372036854775807",
                           "1.5",
                           "\"\"",
                           "\"☃\"",
                           R"({"int":"18446744073709551615"})",
                           R"({"int":"-9223372036854775809"})",
                           R"({"int":"-18446744073709551616"})",
                           R"({"int":"1606938044258990275541962092341162602522202993782792835301376"})",
                           R"({"int":"-340282366920938463463374607431768211455"})",
                           R"({"numpy":["<f4","AACAPw=="]})",
                           R"({"numpy":["|b1","AQ=="]})",
                           R"({"numpy":["<U2","YQAAAGIAAAA="]})",
                           R"({"ndarray":["<i2",[3,1],"AQACAAMA"]})",
                           R"({"size":[2,3]})",
                           R"({"odict":[["b",1],["a",{"odict":[]}]]})",
                           R"({"dict":[[{"tuple":[1,"a"]},1],[{"float":"nan"},2],[true,3]]})",
                           R"({"float":"nan"})",
                           R"({"float":"-inf"})",
                           R"({"bytes":""})",
                           R"({"bytes":"AP+AQcO/"})",
                           R"({"dtype":"float8_e5m2"})",
                           R"({"list":[1,{"tuple":[]},"x"]})",
                           R"({"dict":[["a",1],[2,{"list":[]}],[null,{"dict":[]}]]})"}) {
    const Json value = *ParseJson(text, "value");
    EXPECT_EQ(nlohmann::json(RoundTrip(value)), nlohmann::json(value)) << text;
  }
}

TEST(PickleTest, WhatPythonWrites) {
  // pickle.dumps({"a": [1, (2.5, None)], "b": b"\xff", 3: -1}, protocol=4)
  const std::string four(
      "\x80\x04\x95*\0\0\0\0\0\0\0}\x94(\x8c\x01"
      "a\x94]\x94(K\x01G@\x04\0\0\0\0\0\0N\x86\x94"
      "e\x8c\x01"
      "b\x94"
      "C\x01\xff\x94K\x03J\xff\xff\xff\xffu.",
      53);
  auto pickle = Read(four);
  ASSERT_TRUE(pickle) << pickle.error().ToString();
  EXPECT_EQ(DumpJson(*ValueOf(*pickle, pickle->root())),
            R"({"dict":[["a",{"list":[1,{"tuple":[2.5,null]}]}],["b",{"bytes":"/w=="}],[3,-1]]})");
}

TEST(PickleTest, TheArgumentsOfAScriptAreADict) {
  // pickle.dumps({"args": argparse.Namespace(lr=0.5, out=PosixPath("/a/b"), on=torch.device("cuda", 1)),
  //               "none": argparse.Namespace()}, protocol=2), without the instructions that fill the memo
  const auto pickle =
      Read(std::string_view("\x80\x02}(X\x04\0\0\0argscargparse\nNamespace\n)\x81}(X\x02\0\0\0lrG?\xe0\0\0\0\0\0\0"
                            "X\x03\0\0\0outcpathlib\nPosixPath\nX\x01\0\0\0/X\x01\0\0\0aX\x01\0\0\0b\x87R"
                            "X\x02\0\0\0onctorch\ndevice\nX\x04\0\0\0cudaK\x01\x86Rub"
                            "X\x04\0\0\0nonecargparse\nNamespace\n)\x81u.",
                            169));
  ASSERT_TRUE(pickle) << pickle.error().ToString();
  const auto state = StateOf(*pickle);
  ASSERT_TRUE(state) << state.error().ToString();
  EXPECT_EQ(state->values.at("args/lr"), Json(0.5));
  EXPECT_EQ(state->values.at("args/out"), Json("/a/b"));
  EXPECT_EQ(state->values.at("args/on"), Json("cuda:1"));
  EXPECT_EQ(state->values.at("none"), Json({{"dict", Json::array()}}));
}

TEST(PickleTest, NamesThatCouldRunCodeAreRefusedByName) {
  for (const char* text : {"\x80\x02"
                           "cos\nsystem\n(X\x02\0\0\0idtR.",
                           "\x80\x04\x8c\x02os\x8c\x06system\x93."}) {
    auto pickle = Read(std::string_view(text, 26));
    ASSERT_FALSE(pickle);
    EXPECT_EQ(pickle.error().code(), Code::kUnsupported);
    EXPECT_THAT(pickle.error().ToString(), HasSubstr("os.system"));
  }
  // An instruction that no torch writes: INST.
  EXPECT_EQ(Read("(ios\nsystem\n.").error().code(), Code::kUnsupported);
}

TEST(PickleTest, NonsenseIsCorrupt) {
  for (std::string_view text :
       {"", ".", "}", "(.", "u.", "}a.", "}K\x01.", "}(K\x01u.", "h\x07.", "R.", "K\x01K\x01R.", "X\xff\xff\xff\x7f",
        "K\x01"
        "b.",
        "t.", "Q.", "ctorch\n"}) {
    auto pickle = Read(text);
    EXPECT_EQ(pickle.has_value(), text == "}K\x01.") << text;  // there a value too many is left lying
  }
  EXPECT_EQ(Read("X\x01\0\0\0\xff.").error().code(), Code::kCorrupt);
}

TEST(PickleTest, ListsInsideThemselvesEnd) {
  // a = []; a.append(a)
  auto pickle = Read("]q\0h\0a.");
  std::string_view loop("]q\0h\0a.", 7);
  pickle = Read(loop);
  ASSERT_TRUE(pickle) << pickle.error().ToString();
  EXPECT_EQ(ValueOf(*pickle, pickle->root()).error().code(), Code::kResourceExhausted);
  // Doubling: sixty lists, each twice the one before, describe 2^60 values in 300 bytes.
  std::string bomb = "]";
  for (char i = 0; i < 60; ++i) bomb += std::string("q") + i + "]h" + i + "ah" + i + "a";
  pickle = Read(bomb + ".");
  ASSERT_TRUE(pickle) << pickle.error().ToString();
  EXPECT_EQ(ValueOf(*pickle, pickle->root()).error().code(), Code::kResourceExhausted);
}

TEST(PickleTest, LimitsHold) {
  EXPECT_EQ(Pickle::Read("N.", {}, "test", {.bytes = 1}).error().code(), Code::kResourceExhausted);
  EXPECT_EQ(Pickle::Read("(NNNt.", {}, "test", {.values = 3}).error().code(), Code::kResourceExhausted);
}

/// A pickle writes a text once, and refers to it many times. Each time is a copy in the state.
TEST(PickleTest, SharedTextsCountEachTime) {
  const std::string text = std::string("X\x40\x42\x0f\0", 5) + std::string(1'000'000, 'y') + "q\1";  // with its size
  std::string list = "](" + text, numbers = "}(";
  for (int i = 0; i < 500; ++i) list += "h\1";
  for (int i = 0; i < 500; ++i) {
    numbers += std::string("M") + static_cast<char>(i & 0xff) + static_cast<char>(i >> 8) + "N";
  }
  auto pickle = Read(list + "e.");
  ASSERT_TRUE(pickle) << pickle.error().ToString();
  EXPECT_EQ(ValueOf(*pickle, pickle->root()).error().code(), Code::kResourceExhausted);
  // As a value of a state, and as a part of its paths.
  for (const std::string& members : {std::string("X\1\0\0\0l", 6) + list + "e", text + numbers + "u"}) {
    pickle = Read("}(" + members + "u.");
    ASSERT_TRUE(pickle) << pickle.error().ToString();
    EXPECT_EQ(StateOf(*pickle).error().code(), Code::kResourceExhausted);
  }
}

TEST(PickleTest, PathsComeBack) {
  Random random(1);
  const std::string letters = "a/%#@(2F";
  for (int i = 0; i < 2000; ++i) {
    std::string key;
    for (auto n = random.Below(6); n > 0; --n) key += letters[random.Below(letters.size())];
    auto path = PathOf(PathPart(key));
    ASSERT_TRUE(path) << key;
    ASSERT_EQ(path->size(), 1u) << key;
    EXPECT_EQ((*path)[0].text, key);
    EXPECT_EQ((*path)[0].kind, PathKey::KeyKind::kKey);
  }
}

/// Writes a call that makes a tensor of `rows` floats of a storage of 4. `negative`: the value of its bit "neg".
std::string TensorPickle(int offset, int rows, int stride, std::optional<bool> negative = {}) {
  PickleWriter out;
  out.Global("torch._utils", "_rebuild_tensor_v2");
  out.OpenMark();
  out.OpenMark();
  out.Text("storage");
  out.Global("torch", "FloatStorage");
  out.Text("0");
  out.Text("cpu");
  out.Int(4);
  out.Tuple();
  out.PersistentId();
  out.Int(offset);
  out.IntTuple(std::vector{rows});
  out.IntTuple(std::vector{stride});
  if (negative) {
    out.Bool(false);
    out.EmptyDict();
    out.EmptyDict();
    out.OpenMark();
    out.Text("neg");
    out.Bool(*negative);
    out.SetItems();
  }
  out.Tuple();
  out.Reduce();
  return std::move(out).Finish();
}

TEST(PickleTest, AViewOutsideItsStorageIsCorrupt) {
  for (auto [offset, rows, stride, right] : {std::tuple(0, 4, 1, true),
                                             {1, 3, 1, true},
                                             {1, 4, 1, false},
                                             {0, 3, 2, false},
                                             {0, 2, 3, true},
                                             {4, 0, 1, true}}) {
    const std::string bytes = TensorPickle(offset, rows, stride);
    auto pickle = Read(bytes);
    ASSERT_TRUE(pickle) << pickle.error().ToString();
    EXPECT_EQ(TensorOf(*pickle, pickle->root()).has_value(), right) << offset << " " << rows << " " << stride;
  }
}

TEST(PickleTest, ATensorWhoseSignIsABitIsRefused) {
  for (const bool negative : {false, true}) {
    const std::string bytes = TensorPickle(0, 4, 1, negative);
    const auto pickle = Read(bytes);
    ASSERT_TRUE(pickle) << pickle.error().ToString();
    const auto tensor = TensorOf(*pickle, pickle->root());
    ASSERT_EQ(tensor.has_value(), !negative);
    if (!tensor) EXPECT_THAT(tensor.error().ToString(), HasSubstr("resolve_neg()"));
  }
}

}  // namespace
}  // namespace millrace::checkpoint
