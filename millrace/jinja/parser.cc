// The grammar of Jinja 3.1 (jinja2/parser.py has it in the form of code), by recursive descent.
#include "millrace/jinja/syntax.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "millrace/jinja/lexer.h"

namespace millrace::jinja {
namespace {

using Kind = Token::Kind;
/// Levels of brackets and tags within each other. Recursion takes stack.
constexpr int kMaxDepth = 150;
constexpr int kMaxLinks = 300;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Result<Block> Run() {
    Block block = MR_TRY(ParseBlock({}));
    if (Current().kind != Kind::kEnd) return Wrong("unexpected {{% {} %}}", Next().text);
    return block;
  }

 private:
  /// Counts levels while it lives.
  class Level {
   public:
    explicit Level(int& depth) : depth_(++depth) {}
    ~Level() { --depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    int& depth_;
  };

  const Token& Current() const { return tokens_[at_]; }
  const Token& Peek() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  /// Returns the current token and goes on to the next one.
  const Token& Next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool IsOperator(std::string_view text) const { return Current().Is(Kind::kOperator, text); }
  bool IsName(std::string_view text) const { return Current().Is(Kind::kName, text); }
  bool SkipOperator(std::string_view text) {
    if (!IsOperator(text)) return false;
    ++at_;
    return true;
  }
  bool SkipName(std::string_view text) {
    if (!IsName(text)) return false;
    ++at_;
    return true;
  }
  template <class... Arguments>
  std::unexpected<Error> Wrong(fmt::format_string<Arguments...> format, Arguments&&... arguments) const {
    return Fail(Code::kInvalidArgument, "line {}: {}", Current().line,
                fmt::format(format, std::forward<Arguments>(arguments)...));
  }
  Status Expect(Kind kind, std::string_view text) {
    if (Current().kind != kind || Current().text != text) {
      return Wrong("expected \"{}\", not {}", text.empty() ? "the end of the tag" : text, Describe());
    }
    ++at_;
    return {};
  }
  Result<std::string> ExpectName() {
    if (Current().kind != Kind::kName) return Wrong("expected a name, not {}", Describe());
    return Next().text;
  }
  std::string Describe() const {
    switch (Current().kind) {
      case Kind::kEnd:
        return "the end of the template";
      case Kind::kOutputEnd:
        return "}}";
      case Kind::kTagEnd:
        return "%}";
      default:
        return fmt::format("\"{}\"", Current().text);
    }
  }

  // Statements.

  /// Parses up to a tag of one of these names, which becomes the current token; at the end of the template, to its end.
  Result<Block> ParseBlock(std::initializer_list<std::string_view> ends) {
    const Level level(depth_);
    if (depth_ > kMaxDepth) return Wrong("too many tags within each other");
    Block block;
    while (Current().kind != Kind::kEnd) {
      links_ = 0;
      if (Current().kind == Kind::kText) {
        const Token& token = Next();
        block.push_back({.kind = Statement::Kind::kText, .line = token.line, .text = token.text});
      } else if (Current().kind == Kind::kOutputBegin) {
        const int line = Next().line;
        ExpressionPointer expression = MR_TRY(ParseTuple());
        MR_TRY(Expect(Kind::kOutputEnd, ""));
        block.push_back({.kind = Statement::Kind::kOutput, .line = line, .expression = std::move(expression)});
      } else {
        ++at_;  // the tag's beginning
        if (Current().kind != Kind::kName) return Wrong("a tag begins with a name, not {}", Describe());
        if (std::find(ends.begin(), ends.end(), Current().text) != ends.end()) return block;
        if (ends.size() == 0 && Current().text.starts_with("end")) return block;
        Statement statement = MR_TRY(ParseStatement());
        block.push_back(std::move(statement));
      }
    }
    if (ends.size() > 0) return Wrong("the template ends before {{% {} %}}", *(ends.end() - 1));
    return block;
  }

  /// Parses the name of an end tag and its end.
  Status EndTag(std::string_view name) {
    MR_TRY(Expect(Kind::kName, name));
    return Expect(Kind::kTagEnd, "");
  }

  Result<Statement> ParseStatement() {
    const int line = Current().line;
    const std::string name = Next().text;
    Statement statement = MR_TRY(ParseNamed(name));
    statement.line = line;
    return statement;
  }

  Result<Statement> ParseNamed(const std::string& name) {
    if (name == "if") return ParseIf();
    if (name == "for") return ParseFor();
    if (name == "set") return ParseSet();
    if (name == "macro") return ParseMacro();
    if (name == "generation") {
      MR_TRY(Expect(Kind::kTagEnd, ""));
      Statement statement{.kind = Statement::Kind::kGeneration, .line = Current().line};
      statement.body = MR_TRY(ParseBlock({"endgeneration"}));
      MR_TRY(EndTag("endgeneration"));
      return statement;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) return Wrong("{{% {} %}} stands outside of a loop", name);
      MR_TRY(Expect(Kind::kTagEnd, ""));
      return Statement{.kind = name == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue};
    }
    constexpr std::array<std::string_view, 12> kUnsupported = {"include",    "import", "from",   "extends",
                                                               "block",      "call",   "filter", "with",
                                                               "autoescape", "do",     "trans",  "debug"};
    if (std::find(kUnsupported.begin(), kUnsupported.end(), name) != kUnsupported.end()) {
      return Fail(Code::kUnsupported, "line {}: {{% {} %}} is not supported", Current().line, name);
    }
    return Wrong("unknown tag {{% {} %}}", name);
  }

  Result<Statement> ParseIf() {
    Statement statement{.kind = Statement::Kind::kIf, .line = Current().line};
    statement.expression = MR_TRY(ParseTuple());
    MR_TRY(Expect(Kind::kTagEnd, ""));
    statement.body = MR_TRY(ParseBlock({"elif", "else", "endif"}));
    if (SkipName("elif")) {
      const Level level(depth_);
      if (depth_ > kMaxDepth) return Wrong("too many {{% elif %}}");
      Statement nested = MR_TRY(ParseIf());
      statement.otherwise.push_back(std::move(nested));
      return statement;
    }
    if (SkipName("else")) {
      MR_TRY(Expect(Kind::kTagEnd, ""));
      statement.otherwise = MR_TRY(ParseBlock({"endif"}));
    }
    MR_TRY(EndTag("endif"));
    return statement;
  }

  Result<std::vector<std::string>> ParseTargets() {
    std::vector<std::string> targets;
    const bool in_parentheses = SkipOperator("(");
    do {
      targets.push_back(MR_TRY(ExpectName()));
    } while (SkipOperator(","));
    if (in_parentheses) MR_TRY(Expect(Kind::kOperator, ")"));
    return targets;
  }

  Result<Statement> ParseFor() {
    Statement statement{.kind = Statement::Kind::kFor};
    statement.targets = MR_TRY(ParseTargets());
    MR_TRY(Expect(Kind::kName, "in"));
    statement.expression = MR_TRY(ParseTuple(/*with_condition=*/false));
    if (SkipName("if")) statement.condition = MR_TRY(ParseExpression());
    if (IsName("recursive"))
      return Fail(Code::kUnsupported, "line {}: recursive loops are not supported", Current().line);
    MR_TRY(Expect(Kind::kTagEnd, ""));
    ++loops_;
    statement.body = MR_TRY(ParseBlock({"else", "endfor"}));
    --loops_;
    if (SkipName("else")) {
      MR_TRY(Expect(Kind::kTagEnd, ""));
      statement.otherwise = MR_TRY(ParseBlock({"endfor"}));
    }
    MR_TRY(EndTag("endfor"));
    return statement;
  }

  Result<Statement> ParseSet() {
    Statement statement{.kind = Statement::Kind::kSet};
    statement.targets = MR_TRY(ParseTargets());
    if (statement.targets.size() == 1 && SkipOperator(".")) statement.attribute = MR_TRY(ExpectName());
    if (SkipOperator("=")) {
      statement.expression = MR_TRY(ParseTuple());
      MR_TRY(Expect(Kind::kTagEnd, ""));
      return statement;
    }
    if (statement.targets.size() > 1 || IsOperator("|")) return Wrong("expected \"=\", not {}", Describe());
    MR_TRY(Expect(Kind::kTagEnd, ""));
    statement.kind = Statement::Kind::kSetBlock;
    statement.body = MR_TRY(ParseBlock({"endset"}));
    MR_TRY(EndTag("endset"));
    return statement;
  }

  Result<Statement> ParseMacro() {
    Statement statement{.kind = Statement::Kind::kMacro};
    statement.text = MR_TRY(ExpectName());
    MR_TRY(Expect(Kind::kOperator, "("));
    while (!IsOperator(")")) {
      if (!statement.parameters.empty()) MR_TRY(Expect(Kind::kOperator, ","));
      if (IsOperator(")")) break;
      Parameter parameter{.name = MR_TRY(ExpectName()), .fallback = nullptr};
      if (SkipOperator("=")) parameter.fallback = MR_TRY(ParseExpression());
      statement.parameters.push_back(std::move(parameter));
    }
    MR_TRY(Expect(Kind::kOperator, ")"));
    MR_TRY(Expect(Kind::kTagEnd, ""));
    const int outer_loops = std::exchange(loops_, 0);
    statement.body = MR_TRY(ParseBlock({"endmacro"}));
    loops_ = outer_loops;
    MR_TRY(EndTag("endmacro"));
    return statement;
  }

  // Expressions, the operators that bind least first.

  std::unique_ptr<Expression> Make(Expression::Kind kind, int line, std::string text = "") const {
    auto expression = std::make_unique<Expression>();
    expression->kind = kind;
    expression->line = line;
    expression->text = std::move(text);
    return expression;
  }
  template <class... Operands>
  ExpressionPointer Join(Expression::Kind kind, int line, std::string text, Operands... operands) const {
    auto expression = Make(kind, line, std::move(text));
    (expression->operands.push_back(std::move(operands)), ...);
    return expression;
  }

  /// Parses "a, b": a tuple without parentheses, or one expression.
  Result<ExpressionPointer> ParseTuple(bool with_condition = true) {
    const int line = Current().line;
    ExpressionPointer first = MR_TRY(with_condition ? ParseExpression() : ParseOr());
    if (!IsOperator(",")) return first;
    auto tuple = Make(Expression::Kind::kTuple, line);
    tuple->operands.push_back(std::move(first));
    while (SkipOperator(",")) {
      if (Current().kind == Kind::kTagEnd || Current().kind == Kind::kOutputEnd || IsOperator(")")) break;
      ExpressionPointer next = MR_TRY(with_condition ? ParseExpression() : ParseOr());
      tuple->operands.push_back(std::move(next));
    }
    return tuple;
  }

  Result<ExpressionPointer> ParseExpression() {
    const Level level(depth_);
    if (depth_ > kMaxDepth) return Wrong("too many brackets within each other");
    ExpressionPointer expression = MR_TRY(ParseOr());
    while (IsName("if")) {
      MR_TRY(CountLink());
      const int line = Next().line;
      ExpressionPointer condition = MR_TRY(ParseOr());
      ExpressionPointer otherwise;
      if (SkipName("else")) otherwise = MR_TRY(ParseExpression());
      expression = Join(Expression::Kind::kConditional, line, "", std::move(expression), std::move(condition),
                        std::move(otherwise));
    }
    return expression;
  }

  /// Counts an operator that takes what stands before it as its operand: each makes the tree of a tag deeper.
  Status CountLink() {
    if (++links_ > kMaxLinks) return Wrong("too many operators in one tag");
    return {};
  }

  Result<ExpressionPointer> ParseOr() {
    ExpressionPointer left = MR_TRY(ParseAnd());
    while (IsName("or")) {
      MR_TRY(CountLink());
      const int line = Next().line;
      ExpressionPointer right = MR_TRY(ParseAnd());
      left = Join(Expression::Kind::kOr, line, "", std::move(left), std::move(right));
    }
    return left;
  }

  Result<ExpressionPointer> ParseAnd() {
    ExpressionPointer left = MR_TRY(ParseNot());
    while (IsName("and")) {
      MR_TRY(CountLink());
      const int line = Next().line;
      ExpressionPointer right = MR_TRY(ParseNot());
      left = Join(Expression::Kind::kAnd, line, "", std::move(left), std::move(right));
    }
    return left;
  }

  Result<ExpressionPointer> ParseNot() {
    const Level level(depth_);
    if (depth_ > kMaxDepth) return Wrong("too many operators within each other");
    if (!IsName("not")) return ParseCompare();
    const int line = Next().line;
    ExpressionPointer operand = MR_TRY(ParseNot());
    return Join(Expression::Kind::kNot, line, "", std::move(operand));
  }

  Result<ExpressionPointer> ParseCompare() {
    constexpr std::array<std::string_view, 6> kOperators = {"==", "!=", "<", "<=", ">", ">="};
    const int line = Current().line;
    ExpressionPointer first = MR_TRY(ParseSum());
    auto compare = Make(Expression::Kind::kCompare, line);
    compare->operands.push_back(std::move(first));
    for (;;) {
      if (Current().kind == Kind::kOperator &&
          std::find(kOperators.begin(), kOperators.end(), Current().text) != kOperators.end()) {
        compare->operators.push_back(Next().text);
      } else if (SkipName("in")) {
        compare->operators.emplace_back("in");
      } else if (IsName("not") && Peek().Is(Kind::kName, "in")) {
        at_ += 2;
        compare->operators.emplace_back("not in");
      } else {
        break;
      }
      ExpressionPointer next = MR_TRY(ParseSum());
      compare->operands.push_back(std::move(next));
    }
    if (compare->operators.empty()) return std::move(compare->operands[0]);
    return compare;
  }

  /// Parses operands that `parse` reads, with any of `operators` between them.
  template <std::size_t n>
  Result<ExpressionPointer> ParseArithmetic(const std::array<std::string_view, n>& operators,
                                            Result<ExpressionPointer> (Parser::*parse)()) {
    ExpressionPointer left = MR_TRY((this->*parse)());
    while (Current().kind == Kind::kOperator &&
           std::find(operators.begin(), operators.end(), Current().text) != operators.end()) {
      MR_TRY(CountLink());
      const Token& token = Next();
      ExpressionPointer right = MR_TRY((this->*parse)());
      left = Join(Expression::Kind::kArithmetic, token.line, token.text, std::move(left), std::move(right));
    }
    return left;
  }
  Result<ExpressionPointer> ParseSum() {
    return ParseArithmetic(std::array<std::string_view, 2>{"+", "-"}, &Parser::ParseConcatenation);
  }
  Result<ExpressionPointer> ParseConcatenation() {
    const int line = Current().line;
    ExpressionPointer first = MR_TRY(ParseProduct());
    if (!IsOperator("~")) return first;
    auto all = Make(Expression::Kind::kConcatenate, line);
    all->operands.push_back(std::move(first));
    while (SkipOperator("~")) {
      ExpressionPointer next = MR_TRY(ParseProduct());
      all->operands.push_back(std::move(next));
    }
    return all;
  }
  Result<ExpressionPointer> ParseProduct() {
    return ParseArithmetic(std::array<std::string_view, 4>{"*", "/", "//", "%"}, &Parser::ParsePower);
  }
  Result<ExpressionPointer> ParsePower() {
    return ParseArithmetic(std::array<std::string_view, 1>{"**"}, &Parser::ParseSigned);
  }
  Result<ExpressionPointer> ParseSigned() { return ParseUnary(/*with_filter=*/true); }

  Result<ExpressionPointer> ParseUnary(bool with_filter) {
    const Level level(depth_);
    if (depth_ > kMaxDepth) return Wrong("too many operators within each other");
    const int line = Current().line;
    ExpressionPointer expression;
    if (SkipOperator("-")) {
      ExpressionPointer operand = MR_TRY(ParseUnary(false));
      expression = Join(Expression::Kind::kNegative, line, "", std::move(operand));
    } else if (SkipOperator("+")) {
      ExpressionPointer operand = MR_TRY(ParseUnary(false));
      expression = Join(Expression::Kind::kPositive, line, "", std::move(operand));
    } else {
      expression = MR_TRY(ParsePrimary());
    }
    expression = MR_TRY(ParsePostfix(std::move(expression)));
    return with_filter ? ParseFilters(std::move(expression)) : std::move(expression);
  }

  Result<ExpressionPointer> ParsePrimary() {
    const Token token = Next();
    auto constant = [&](Value value) {
      auto expression = Make(Expression::Kind::kConstant, token.line);
      expression->constant = std::move(value);
      return expression;
    };
    switch (token.kind) {
      case Kind::kName:
        if (token.text == "true" || token.text == "True") return constant(Value::Of(true));
        if (token.text == "false" || token.text == "False") return constant(Value::Of(false));
        if (token.text == "none" || token.text == "None") return constant(Value::OfNone());
        return Make(Expression::Kind::kName, token.line, token.text);
      case Kind::kString: {
        std::string text = token.text;  // strings that follow each other are one
        while (Current().kind == Kind::kString) text += Next().text;
        return constant(Value::Of(std::move(text)));
      }
      case Kind::kInteger: {
        std::int64_t number = 0;
        std::from_chars(token.text.data(), token.text.data() + token.text.size(), number);
        return constant(Value::Of(number));
      }
      case Kind::kFloat: {
        double number = 0;
        std::from_chars(token.text.data(), token.text.data() + token.text.size(), number);
        return constant(Value::Of(number));
      }
      case Kind::kOperator:
        if (token.text == "(") {
          if (SkipOperator(")")) return Make(Expression::Kind::kTuple, token.line);
          ExpressionPointer inner = MR_TRY(ParseTuple());
          MR_TRY(Expect(Kind::kOperator, ")"));
          return inner;
        }
        if (token.text == "[") return ParseList(token.line);
        if (token.text == "{") return ParseDict(token.line);
        [[fallthrough]];
      default:
        break;
    }
    if (token.kind != Kind::kEnd) --at_;
    return Wrong("expected a value, not {}", Describe());
  }

  Result<ExpressionPointer> ParseList(int line) {
    auto list = Make(Expression::Kind::kList, line);
    while (!IsOperator("]")) {
      if (!list->operands.empty()) MR_TRY(Expect(Kind::kOperator, ","));
      if (IsOperator("]")) break;
      ExpressionPointer item = MR_TRY(ParseExpression());
      list->operands.push_back(std::move(item));
    }
    MR_TRY(Expect(Kind::kOperator, "]"));
    return list;
  }

  Result<ExpressionPointer> ParseDict(int line) {
    auto dict = Make(Expression::Kind::kDict, line);
    while (!IsOperator("}")) {
      if (!dict->operands.empty()) MR_TRY(Expect(Kind::kOperator, ","));
      if (IsOperator("}")) break;
      ExpressionPointer key = MR_TRY(ParseExpression());
      MR_TRY(Expect(Kind::kOperator, ":"));
      ExpressionPointer value = MR_TRY(ParseExpression());
      dict->operands.push_back(std::move(key));
      dict->operands.push_back(std::move(value));
    }
    MR_TRY(Expect(Kind::kOperator, "}"));
    return dict;
  }

  Result<ExpressionPointer> ParsePostfix(ExpressionPointer expression) {
    for (;;) {
      MR_TRY(CountLink());
      if (IsOperator(".") || IsOperator("[")) {
        expression = MR_TRY(ParseSubscript(std::move(expression)));
      } else if (IsOperator("(")) {
        expression = MR_TRY(ParseCall(std::move(expression)));
      } else {
        return expression;
      }
    }
  }

  Result<ExpressionPointer> ParseSubscript(ExpressionPointer of) {
    const int line = Current().line;
    if (SkipOperator(".")) {
      if (Current().kind == Kind::kName) return Join(Expression::Kind::kAttribute, line, Next().text, std::move(of));
      if (Current().kind != Kind::kInteger) return Wrong("expected a name or a number, not {}", Describe());
      ExpressionPointer index = MR_TRY(ParsePrimary());
      return Join(Expression::Kind::kItem, line, "", std::move(of), std::move(index));
    }
    MR_TRY(Expect(Kind::kOperator, "["));
    std::array<ExpressionPointer, 3> parts;
    std::size_t colons = 0;
    if (!IsOperator(":")) parts[0] = MR_TRY(ParseTuple());
    while (SkipOperator(":")) {
      if (++colons == parts.size()) return Wrong("a slice has at most two colons");
      if (!IsOperator(":") && !IsOperator("]")) parts[colons] = MR_TRY(ParseExpression());
    }
    MR_TRY(Expect(Kind::kOperator, "]"));
    if (colons == 0) return Join(Expression::Kind::kItem, line, "", std::move(of), std::move(parts[0]));
    return Join(Expression::Kind::kSlice, line, "", std::move(of), std::move(parts[0]), std::move(parts[1]),
                std::move(parts[2]));
  }

  Status ParseArguments(Expression& call) {
    MR_TRY(Expect(Kind::kOperator, "("));
    for (bool first = true; !IsOperator(")"); first = false) {
      if (!first) MR_TRY(Expect(Kind::kOperator, ","));
      if (IsOperator(")")) break;
      if (IsOperator("*") || IsOperator("**")) {
        return Fail(Code::kUnsupported, "line {}: {}arguments in calls are not supported", Current().line,
                    Current().text);
      }
      if (Current().kind == Kind::kName && Peek().Is(Kind::kOperator, "=")) {
        std::string name = Next().text;
        ++at_;
        ExpressionPointer value = MR_TRY(ParseExpression());
        call.named.emplace_back(std::move(name), std::move(value));
        continue;
      }
      if (!call.named.empty()) return Wrong("an argument without a name follows one with a name");
      ExpressionPointer value = MR_TRY(ParseExpression());
      call.operands.push_back(std::move(value));
    }
    return Expect(Kind::kOperator, ")");
  }

  Result<ExpressionPointer> ParseCall(ExpressionPointer callee) {
    auto call = Make(Expression::Kind::kCall, Current().line);
    call->operands.push_back(std::move(callee));
    MR_TRY(ParseArguments(*call));
    return call;
  }

  Result<ExpressionPointer> ParseFilters(ExpressionPointer expression) {
    for (;;) {
      MR_TRY(CountLink());
      if (SkipOperator("|")) {
        const int line = Current().line;
        auto filter = Make(Expression::Kind::kFilter, line, MR_TRY(ExpectName()));
        filter->operands.push_back(std::move(expression));
        if (IsOperator("(")) MR_TRY(ParseArguments(*filter));
        expression = std::move(filter);
      } else if (SkipName("is")) {
        expression = MR_TRY(ParseTest(std::move(expression)));
      } else if (IsOperator("(")) {
        expression = MR_TRY(ParseCall(std::move(expression)));
      } else {
        return expression;
      }
    }
  }

  Result<ExpressionPointer> ParseTest(ExpressionPointer expression) {
    const int line = Current().line;
    const bool negated = SkipName("not");
    auto test = Make(Expression::Kind::kTest, line, MR_TRY(ExpectName()));
    test->operands.push_back(std::move(expression));
    const Token& token = Current();
    const bool is_value =
        (token.kind == Kind::kName && token.text != "else" && token.text != "or" && token.text != "and") ||
        token.kind == Kind::kString || token.kind == Kind::kInteger || token.kind == Kind::kFloat || IsOperator("[") ||
        IsOperator("{");
    if (IsName("is")) return Wrong("tests cannot be chained");
    if (IsOperator("(")) {
      MR_TRY(ParseArguments(*test));
    } else if (is_value) {
      ExpressionPointer argument = MR_TRY(ParsePrimary());
      argument = MR_TRY(ParsePostfix(std::move(argument)));
      test->operands.push_back(std::move(argument));
    }
    if (!negated) return test;
    return Join(Expression::Kind::kNot, line, "", ExpressionPointer(std::move(test)));
  }

  const std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
  int links_ = 0;  ///< of the current tag
};

}  // namespace

Result<Block> ParseTemplate(std::string_view source) {
  std::vector<Token> tokens = MR_TRY(Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace millrace::jinja
