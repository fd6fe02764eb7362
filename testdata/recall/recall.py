"""Measures the search of a2e's memory beside SQLite FTS5, rank_bm25 and TF-IDF over characters.

recall.json has the wanted entries and the queries by class. heldout.json has further queries, which
were written before any of their results was seen. filler() makes the other entries. The program prints recall@1
and @10 by class, the latency of a2e at the largest size, and the number of entries stored per second.

    recall.py A2E [--sizes 170,10000,100000] [--peers none] [--misses] [--queries heldout.json]
"""
import argparse, json, os, random, sqlite3, statistics, subprocess, sys, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))

NOUNS = """pool database backup dump session cache password vault deploy release approval queue batch request screenshot review
authentication invoice refund answer branch documentation indent ticket message lunch birthday travel seat train machine floor test
timezone clock browser port broker certificate agent worker file unit image container report memory row chart component listener
table order scheduler header frontend upload gateway probe token minute cursor page timestamp export webhook signature body
subscription login service cache client search index alias flag code design button bundle consumer partition pipeline customer
address warehouse log audit record migration node hour limit state bucket laptop balancer connection printer office room expense
tax rate price unit notification licence scanner commit developer monorepo cable rack generator visitor badge restaurant pump
warranty winter cellar meeting roof introduction group dashboard alert incident outage budget contract supplier shipment carton
label sensor gasket valve turbine lecture exhibition harbour orchard violin novel museum garden bicycle kitchen recipe painting
choir kettle drawer ladder blanket compass ferry quarry lantern""".split()
VERBS = """hold refuse start upload restore survive rotate freeze return drain count prefer review own like push write order collect
fail depend sleep need clash renew raise prune load stream leak remove lock hang allow pass sign retry disable differ speak reject
move take delete fall grow hash keep reverse detach cost apply drop cache store resize convert support scan clone label test buy
park choose replace carry practise run borrow approve deploy migrate index partition export import schedule archive measure paint
repair polish deliver inspect translate cancel print""".split()
ADJECTIVES = """nightly old public small internal weekly visual legacy shared temporary slow missing urgent local regional expired
manual quiet broken annual green remote spare foreign partial hidden yearly wooden early""".split()
SERVICES = """orchid kestrel billing-api heron ledger atlas courier beacon magpie quartz saffron juniper harbor-ui tundra pelican
mosaic cobalt linden""".split()
PEOPLE = "Mara Jonas Priya Tomasz Ines Grace Henrik Amara Yuki Camille Olga Samir Petra Diego Wanjiru Leif Noor Bram Chiara Anton".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
GERMAN = ("Der Kunde,Die Spedition,Das Lager,Frau Nowak,Der Lieferant,Die Buchhaltung,Das Sekretariat,Der Betriebsrat,Die Abteilung,Der Handwerker,Das Labor,Der Empfang".split(","),
          "prüft,bestellt,verschickt,übersetzt,bezahlt,genehmigt,kündigt,wartet,bucht,überwacht,lehnt ab:,archiviert".split(","),
          "die Rechnungen,den Vertrag,die Anhänge,neue Belege,die Bestände,den Aufzug,alle Handbücher,zwei Kisten,die Urlaubsanträge,den Schichtplan,die Messgeräte,Getränke,die Dächer,das Passwort,Züge und Hotels,die Mahnungen".split(","),
          "bis Monatsende.,am Donnerstag.,im August.,jeden Montag.,drei Monate vorher.,über das Portal.,für das Geschäftsjahr.,nach der Frühschicht.,im Nordflügel.,außer bei Skonto.".split(","))
CHINESE = ("客户,仓库,张伟,李娜,会议室,生产数据库,移动端应用,新员工,日志文件,缓存服务器,合同,快递公司,支付系统".split(","),
           "需要,已经,不能,正在,每周,提前,必须,决定,暂时".split(","),
           "更新,备份,删除,同步,预订,通知,检查,发布,更换,计算,登录,培训".split(","),
           "库存数据。,安全证书。,发票。,退款申请。,报表。,权限设置。,旧版本。,供应商资料。,午餐订单。,三楼的设备。".split(","))
JAPANESE = ("東京オフィス,倉庫,佐藤さん,田中さん,本番サーバー,会議室,ユーザー,新入社員,監査ログ,請求書,プリンター,翻訳チーム".split(","),
            "は,では,については,に関して".split(","),
            "来週の,毎日の,月末の,四月の,金曜日の,午前の,二階の".split(","),
            "更新を予定している。,予約を取り消した。,データを保存する。,研修を行う。,在庫を確認する。,申請を禁止している。,リリースを担当する。,証明書を交換する。,費用を計算する。".split(","))
ARABIC = ("قاعدة البيانات,المستودع,أحمد,ليلى,الموظفون,شركة الشحن,الطابعة,المستخدم,نظام الدفع,شبكة الضيوف".split(","),
          "يحتاج إلى,ينتظر,يراجع,يرسل,يحفظ,يغير,يؤجل".split(","),
          "نسخة جديدة,كلمة مرور,تقرير الفواتير,عقد الصيانة,شهادة الأمان,جدول التدريب,سجلات قديمة,مخزون الحبر".split(","),
          "كل أسبوع.,يوم الخميس.,في الطابق الثاني.,قبل نهاية الشهر.,بعد الاجتماع.,من العمل.".split(","))


def evidence(query, text):
    """Returns the parts of a query that its wanted entry has too: beginnings of words, pairs of Han and kana."""
    parts = set()
    for word in words(query):
        size = 2 if ord(word[0]) >= 0x3000 else 4
        parts.update(word[i:i + size] for i in range(len(word) - size + 1 if size == 2 else 1))
    return [part for part in parts if part in text.lower()]


def filler(n, data):
    """Returns n entries of everyday notes, the same ones in each run. Most share words with the wanted
    entries, but none has all parts that a query shares with its wanted entry."""
    r = random.Random(19)
    answers = [evidence(query, data["entries"][want]) for pairs in data["queries"].values() for query, want in pairs]
    answers = [parts for parts in answers if len(parts) > 1]
    syllables = [c + v + e for c in "b d f g k l m n p r s t v z br st".split() for v in "aeiou" for e in ("", "n", "r", "l")]
    pick = r.choice
    rare = lambda: "".join(pick(syllables) for _ in range(r.randint(2, 4)))

    def form(verb):
        stem = verb[:-1] if verb.endswith("e") else verb
        return pick([verb, verb + "s", stem + "ed", stem + "ing"])

    def clause():
        noun, other = pick(NOUNS), pick(NOUNS)
        return pick([
            lambda: f"{pick(PEOPLE)} {form(pick(VERBS))} the {pick(ADJECTIVES)} {noun} of {pick(SERVICES)}",
            lambda: f"the {noun} for {rare().title()} {form(pick(VERBS))} {r.randint(2, 900)} {other}s",
            lambda: f"{pick(SERVICES)} {form(pick(VERBS))} its {noun} every {r.randint(2, 60)} minutes",
            lambda: f"{pick(ADJECTIVES)} {noun}s and {other}s are due on {pick(DAYS)}",
            lambda: f"never {pick(VERBS)} a {noun} without the {pick(ADJECTIVES)} {other}",
            lambda: f"ticket {pick(['OPS', 'WEB', 'FIN'])}-{r.randint(1000, 9999)} is about the {noun} in {rare()}",
            lambda: f"{rare().title()} Ltd asked for a {noun} with {pick(ADJECTIVES)} {other}s",
        ])()

    def code():
        a, b, c = pick(NOUNS), pick(NOUNS), pick(VERBS)
        return pick([
            lambda: f"func {c}{a.title()}{b.title()}(ctx context.Context, id int) error in internal/{a}/{rare()}.go",
            lambda: f"{a.upper()}_{b.upper()}_{c.upper()}={r.randint(0, 5000)} in {pick(SERVICES)}.env",
            lambda: f"SELECT {a}_id, count(*) FROM {b}s WHERE {c}_at > now() - interval '{r.randint(2, 90)} days'",
            lambda: f"{a}_{c}_{b}: {r.randint(1, 400)}ms p95, commit {r.getrandbits(28):07x}",
        ])()

    def note():
        kind = r.random()
        if kind < .72:
            text = "; ".join(clause() for _ in range(r.randint(1, 3))) + "."
            return text[0].upper() + text[1:]
        if kind < .84:
            return code()
        parts = GERMAN if kind < .90 else CHINESE if kind < .94 else JAPANESE if kind < .97 else ARABIC
        joint = "" if parts in (CHINESE, JAPANESE) else " "
        return " ".join(joint.join(map(pick, parts)) for _ in range(r.randint(1, 2))) + pick(["", f" ({rare()} {r.randint(1, 99999)})"])

    notes = []
    while len(notes) < n:
        text = note()
        lower = text.lower()
        if not any(all(part in lower for part in parts) for parts in answers):
            notes.append(text)
    return notes


class Host:
    """a2e on a pipe."""

    def __init__(self, binary, home):
        env = {"HOME": home, "PATH": os.environ["PATH"]}
        self.child = subprocess.Popen([binary], cwd=home, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.ask(type="handshake/req", agent_id="recall", agent_caps=["memory"])
        self.memory = self.ask(type="memory/init/req")["memory_id"]

    def ask(self, **request):
        self.child.stdin.write(json.dumps({"id": "1", **request}).encode() + b"\n")
        self.child.stdin.flush()
        answer = json.loads(self.child.stdout.readline())
        if answer["type"] == "error" or answer.get("errors"):
            sys.exit(f"a2e answered {str(answer)[:500]}")
        return answer

    def store(self, entries, batch=1000):
        began = time.perf_counter()
        for at in range(0, len(entries), batch):
            self.ask(type="memory/store/req", memory_id=self.memory, entries=[
                {"key": {"id": key}, "tier": "semantic", "content": text} for key, text in entries[at:at + batch]])
        return len(entries) / (time.perf_counter() - began)

    def search(self, query):
        answer = self.ask(type="memory/retrieve/req", memory_id=self.memory, query=query, limit=10)
        return [entry["key"]["id"] for entry in answer["entries"]]

    def close(self):
        self.child.stdin.close()
        self.child.wait()


def latencies(binary, home, queries):
    """Returns the seconds of a process's first search (median of five) and of each query (median of three)."""
    firsts, times = [], []
    for attempt in range(5):
        host = Host(binary, home)
        began = time.perf_counter()
        host.search(queries[attempt])
        firsts.append(time.perf_counter() - began)
        host.close()
    host = Host(binary, home)
    for query in queries:
        one = []
        for _ in range(3):
            began = time.perf_counter()
            host.search(query)
            one.append(time.perf_counter() - began)
        times.append(statistics.median(one))
    host.close()
    return statistics.median(firsts), sorted(times)


def words(text):
    return "".join(c if c.isalnum() else " " for c in text.lower()).split()


def fts5(tokenizer):
    def index(entries):
        db = sqlite3.connect(":memory:")
        db.execute(f"CREATE VIRTUAL TABLE t USING fts5(text, tokenize='{tokenizer}')")
        db.executemany("INSERT INTO t (rowid, text) VALUES (?, ?)", ((i, text) for i, (_, text) in enumerate(entries)))

        def search(query):
            terms = words(query)
            if tokenizer == "trigram":
                terms = [term[i:i + 3] for term in terms for i in range(len(term) - 2)]
            if not terms:
                return []
            match = " OR ".join(f'"{term}"' for term in terms)
            return [entries[i][0] for i, in db.execute("SELECT rowid FROM t WHERE t MATCH ? ORDER BY rank LIMIT 10", [match])]
        return search
    return index


def rank_bm25(entries):
    import numpy
    from rank_bm25 import BM25Okapi
    model = BM25Okapi([words(text) for _, text in entries])

    def search(query):
        scores = model.get_scores(words(query))
        return [entries[i][0] for i in numpy.argsort(-scores, kind="stable")[:10] if scores[i] > 0]
    return search


def characters(entries):
    import numpy
    from sklearn.feature_extraction.text import TfidfVectorizer
    model = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
    matrix = model.fit_transform(text for _, text in entries)

    def search(query):
        scores = (matrix @ model.transform([query]).T).toarray().ravel()
        return [entries[i][0] for i in numpy.argsort(-scores, kind="stable")[:10] if scores[i] > 0]
    return search


PEERS = {"fts5": fts5("unicode61"), "porter": fts5("porter unicode61"), "trigram": fts5("trigram"), "bm25": rank_bm25, "char": characters}


def recall(search, queries, misses):
    """Returns recall@1 and @10 for each class and for all queries."""
    rows, right, near, count = {}, 0, 0, 0
    for kind, pairs in queries.items():
        found = [(query, want, search(query)) for query, want in pairs]
        one, ten = sum(ids[:1] == [want] for _, want, ids in found), sum(want in ids for _, want, ids in found)
        rows[kind] = one / len(pairs), ten / len(pairs)
        right, near, count = right + one, near + ten, count + len(pairs)
        for query, want, ids in found if misses else ():
            if ids[:1] != [want]:
                print(f"    {kind}: {query!r} wants {want}, finds {ids[:3]}")
    rows["all"] = right / count, near / count
    return rows


def main():
    options = argparse.ArgumentParser()
    options.add_argument("binary")
    options.add_argument("--sizes", default="170,10000,100000")
    options.add_argument("--peers", default=",".join(PEERS), help="of " + ", ".join(PEERS) + "; or none")
    options.add_argument("--queries", default="recall.json", help="which file beside this one has the queries")
    options.add_argument("--misses", action="store_true", help="print what a2e does not find first")
    args = options.parse_args()
    with open(os.path.join(HERE, "recall.json"), encoding="utf-8") as file:
        data = json.load(file)
    with open(os.path.join(HERE, args.queries), encoding="utf-8") as file:
        data["queries"] = json.load(file)["queries"]
    sizes = [int(size) for size in args.sizes.split(",")]
    wanted = list(data["entries"].items())
    fillers = filler(max(sizes) - len(wanted), data)
    for size in sizes:
        more = [(f"filler{i}", text) for i, text in enumerate(fillers[:size - len(wanted)])]
        entries = more[::2] + wanted + more[1::2]
        with tempfile.TemporaryDirectory(prefix="a2e-recall-") as home:
            host = Host(os.path.abspath(args.binary), home)
            rate = host.store(entries)
            tables = {"a2e": recall(host.search, data["queries"], args.misses)}
            host.close()
            if size == max(sizes):
                queries = [query for pairs in data["queries"].values() for query, _ in pairs]
                first, times = latencies(os.path.abspath(args.binary), home, queries)
            disk = sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(home) for name in names)
        for name in args.peers.split(","):
            if name in PEERS:
                tables[name] = recall(PEERS[name](entries), data["queries"], False)
        print(f"\n{size} entries, recall@1/@10; a2e stored {rate:.0f} entries/s in {disk / 1e6:.0f} MB")
        print("| class |" + "".join(f" {name} |" for name in tables) + "\n|---|" + "---|" * len(tables))
        for kind in [*data["queries"], "all"]:
            print(f"| {kind} |" + "".join(" {:.2f}/{:.2f} |".format(*table[kind]) for table in tables.values()))
    at = lambda share: times[min(len(times) - 1, int(len(times) * share))] * 1e3
    print(f"\nsearch at {max(sizes)}: p50 {at(.5):.1f} ms, p99 {at(.99):.1f} ms, first of a process {first * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
