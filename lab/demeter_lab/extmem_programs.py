# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Some ninety real programs as they are and under ``demeter extmem`` with little DRAM, as a table.

Each runs once by itself and once with half of the memory that it took, and at least what
the pager asks for. Both must end alike and write the same bytes.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
LEAST_DRAM_MIB = 16
LIMIT_S = 240
# Runs a command and writes how much of memory its largest process took, in KiB, to a file. A small
# program of its own, for a child counts what its parent was when it was forked.
WITNESS = """
import os, resource, subprocess, sys
status = subprocess.call(sys.argv[2:])
with open(sys.argv[1], "w") as out:
    out.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
if status < 0:
    os.kill(os.getpid(), -status)
sys.exit(status)
"""
DATA = r"""
import base64, json, random
chance = random.Random(7)
def write(name, data):
    with open(name, "wb") as out:
        out.write(data)
write("random", chance.randbytes(24 << 20))
write("text", base64.encodebytes(chance.randbytes(20 << 20)))
words = [base64.b32encode(chance.randbytes(5)).decode().lower() for _ in range(40000)]
lines = [" ".join(chance.choices(words, k=9)) for _ in range(70000)]
write("words", "\n".join(lines).encode() + b"\n")
lines[::50] = [line[::-1] for line in lines[::50]]
write("words2", "\n".join(lines).encode() + b"\n")
rows = [{"id": n, "name": chance.choice(words), "x": chance.random()} for n in range(60000)]
write("rows.json", json.dumps(rows).encode())
write("rows.csv", "".join(f"{r['id']},{r['name']},{r['x']}\n" for r in rows).encode())
write("edges", "".join(f"{n} {n + 1 + chance.randrange(50)}\n" for n in range(60000)).encode())
body = "".join(f"int f{n}(int a){{int s=a;for(int i=0;i<a;i++)s+=i*{n}^s;return s;}}\n"
               for n in range(1200))
write("large.c", body.encode())
write("large.cc", b"#include <map>\n#include <regex>\n#include <vector>\n#include <algorithm>\n"
      + "".join(f"int g{n}(std::map<int,std::vector<int>>&m){{auto&v=m[{n}];"
                f"std::sort(v.begin(),v.end());return v.size();}}\n" for n in range(150)).encode())
write("main.rs", "".join(f"fn f{n}(a:u64)->u64{{(0..a).map(|i|i*{n}).sum()}}\n"
      for n in range(1500)).encode() + b"fn main(){println!(\"{}\",f1(3));}\n")
write("Hash.java", b"import java.util.*;class Hash{public static void main(String[] a){"
      b"Map<Integer,int[]> m=new HashMap<>();long s=0;for(int i=0;i<300000;i++)"
      b"m.put(i*7,new int[]{i,i+1,i+2});for(int[] v:m.values())s+=v[0]*31L+v[2];"
      b"System.out.println(s);}}")
write("hash.go", b"package main\nimport \"fmt\"\nfunc main(){m:=map[int][]int{};"
      b"for i:=0;i<300000;i++{m[i*7]=[]int{i,i+1}};s:=0;for _,v:=range m{s+=v[0]*31+v[1]};"
      b"fmt.Println(s)}\n")
write("cgo.go", b"package main\n// #include <stdlib.h>\nimport \"C\"\n"
      b"import (\"fmt\"; \"net/http\")\nfunc main(){p:=C.malloc(1<<20);C.free(p);"
      b"fmt.Println(http.StatusText(200))}\n")
write("hash.c", b"#include <stdio.h>\n#include <stdlib.h>\nint main(void){"
      b"unsigned long n=1<<21,*t=calloc(n,8),s=0;for(unsigned long i=1;i<n;i++)"
      b"t[i*7919%n]+=i;for(unsigned long i=0;i<n;i++)s=s*31+t[i];"
      b"printf(\"%lu\\n\",s);}\n")
write("hash.R", b"m <- new.env(); for (i in 1:60000) m[[as.character(i * 7)]] <- c(i, i + 1);"
      b"s <- 0; for (k in ls(m)) s <- s + m[[k]][1]; cat(s, sum(sort(runif(2e6)) > 2), '\\n')\n")
"""
# Name and command; the command's output is what is compared.
PROGRAMS = (
    ("sort", "sort -S 200M --parallel=1 text"),
    ("sort -R", "head -n 20000 words | sort -R --random-source=random -S 200M"),
    ("shuf", "shuf --random-source=random text"),
    ("tac", "tac text"),
    ("uniq", "sort words | uniq -c"),
    ("comm", "comm <(sort words) <(sort words2)"),
    ("join", "join -2 2 <(sort -k1,1 edges) <(sort -k2,2 edges)"),
    ("tsort", "tsort edges"),
    ("ptx", "head -n 8000 words | ptx"),
    ("split", "split -b 1M --filter=sha256sum text"),
    ("factor", "seq 1000000000000 1000000003000 | factor"),
    ("mawk", "mawk '{for(i=1;i<=NF;i++)n[$i FNR%9]++} END{for(w in n)s+=n[w]; print s}' words"),
    ("sed", "sed -n 'H;${x;s/\\n/,/g;p}' text"),
    ("grep", "grep -c -E '(a.*z|q[aeiou]+x){2}' words"),
    ("grep -f", "cut -d' ' -f1 words | head -n 30000 >pat; grep -c -F -f pat words2"),
    ("diff", "diff words words2; [ $? = 1 ]"),
    ("cmp", "cmp random random && echo same"),
    ("patch", "diff words words2 >p; patch -s -o - words p"),
    ("bc", "echo 'scale=800; 4*a(1)' | bc -l"),
    ("jq", "jq -c 'group_by(.name)|map({n:.[0].name,c:length})' rows.json"),
    ("xz", "head -c 1000000 words | xz -T1 -6"),
    ("xz -d", "head -c 2000000 words | xz -T1 -0 | xz -d"),
    ("gzip", "gzip -9 -n -c words"),
    ("bzip2", "bzip2 -9 -c words"),
    ("zstd", "zstd -q -15 --single-thread -c rows.json"),
    ("lz4", "lz4 -q -12 -c words"),
    ("zip", "rm -f z.zip; zip -q -X z.zip words; unzip -p z.zip"),
    ("tar", "tar cf - --sort=name --mtime=@0 words text rows.csv"),
    ("cpio", "printf 'words\\ntext\\n' | cpio -o --quiet --reproducible"),
    ("openssl", "openssl enc -aes-256-ctr -K 00 -iv 00 -in random 2>/dev/null"),
    ("b2sum", "b2sum random text words"),
    ("iconv", "iconv -f latin1 -t utf-16 random"),
    ("groff", "head -n 20000 words | groff -Tascii -"),
    ("git", "rm -rf g; git init -q g; cp words words2 g; cd g; git add .; git write-tree"),
    ("git repack", "rm -rf h; git init -q h; cp words words2 h; cd h; git add .; "
     "t=$(git write-tree); git repack -adq; git fsck --full 2>&1 | grep -c error; echo $t"),
    ("sqlite3", "sqlite3 :memory: 'create table t(i,n,x)' '.mode csv' '.import rows.csv t' "
     "'create index k on t(n,x)' 'select n,count(*),sum(i) from t group by n order by n'"),
    ("readelf", "readelf -a \"$(command -v perl)\""),
    ("gcc", "gcc -O2 -S -o - large.c"),
    ("g++", "g++ -O1 -S -o - large.cc"),
    ("cpp", "cpp -P large.cc"),
    ("as", "gcc -O0 -S -o l.s large.c; as -o l.o l.s; sha256sum l.o"),
    ("ld", "gcc -O0 -c -o l2.o large.c; ld -r -o l3.o l2.o; sha256sum l3.o"),
    ("objdump", "objdump -d \"$(command -v perl)\""),
    ("nm", "gcc -O0 -c -o l4.o large.c; nm l4.o"),
    ("strip", "cp \"$(command -v git)\" s; strip s; sha256sum s"),
    ("make", "printf 'a:\\n\\t@sort text | sha256sum\\n' >M; make -s -f M"),
    ("cmake", "cmake --help-full"),
    ("rustc", "rustc --emit=obj -o r.o main.rs 2>/dev/null; nm r.o | grep -c f1"),
    ("go run", "GOFLAGS=-mod=mod GOCACHE=$PWD/gc go run hash.go"),
    ("ar", "gcc -O0 -c -o l5.o large.c; ar rcD l.a l5.o; sha256sum l.a"),
    ("python3", "python3 -c 'import json;"
     "print(sum(r[\"x\"] for r in json.load(open(\"rows.json\"))))'"),
    ("python3 dict", "python3 -c 'm={i*7:[i] for i in range(400000)};"
     "print(sum(v[0]*31 for v in m.values()))'"),
    ("perl", "perl -ne 'for(split){$n{$_.$.%9}++} END{print scalar keys %n}' words"),
    ("node", "node -e 'const m=new Map();for(let i=0;i<400000;i++)m.set(i*7,[i,i+1]);"
     "let s=0;for(const v of m.values())s+=v[0]*31+v[1];console.log(s)'"),
    ("java", "java -Xmx200m Hash.java"),
    ("tclsh", "echo 'for {set i 0} {$i<200000} {incr i} {set m($i) x$i};"
     "puts [array size m]' | tclsh"),
    ("xxd", "xxd random | tail -n 1000"),
    ("vim", "cp words v; vim -es -u NONE -c '%s/a/bb/g' -c 'wq' v; sha256sum v"),
    ("dash", "dash -c 'x=; for i in $(seq 60000); do x=\"$x$i\"; done; echo ${#x}' | head -c 100"),
    ("bash", "bash -c 'for ((i=0;i<120000;i++)); do a[i*3]=x$i; done; echo ${#a[@]} ${a[300]}'"),
    ("strace", "strace -o /dev/null sort text"),
    ("gdb", "gdb -nx -q -batch -ex 'info functions sort' \"$(command -v sort)\" | head -c 200"),
    ("fmt", "fmt words"),
    ("valgrind", "valgrind -q true"),
    ("mkfs.ext4", "truncate -s 256M e; mkfs.ext4 -q -U clear -E lazy_itable_init=0 "
     "e && e2fsck -fn e 2>/dev/null | tail -n 1"),
    ("busybox", "busybox sort text"),
    ("od", "od -A n -t x1 random | tail -n 1000"),
    ("rg", "rg -c -e '(a.*z|q[aeiou]+x)' --sort path words words2 text"),
    ("R", "R -s -f hash.R"),
    ("ffmpeg", "ffmpeg -v error -f lavfi -i testsrc=size=1280x720:rate=25 -t 3 "
     "-c:v libx264 -threads 1 -flags +bitexact -f md5 -"),
    ("convert", "/usr/bin/convert -size 2600x2600 -seed 7 plasma:red-blue -blur 0x2 -rotate 30 "
     "rgb:- | sha256sum"),
    ("stress-ng", "stress-ng -q --vm 2 --vm-bytes 96M --vm-ops 4000 --vm-keep --verify && echo ok"),
    ("fio O_DIRECT", "fio --name=f --filename=fio.bin --direct=1 --rw=randrw --bs=64k --size=24M "
     "--iodepth=8 --ioengine=psync --mem=mmap --verify=crc32c --minimal >/dev/null && echo ok"),
    ("dd bs=32M", "dd if=random bs=32M count=1 status=none | sha256sum"),
    ("java, heap of its choice", "java -XX:+UseG1GC Hash.java"),
    ("java, parallel", "java -XX:+UseParallelGC -Xmx200m Hash.java"),
    ("gdb, runs it", "gdb -nx -q -batch -ex run --args sort words | head -n 3000 | tail -n 2000"),
    ("strace -f", "strace -f -o /dev/null bash -c 'sort words | uniq -c | sort -n | tail -n 50'"),
    ("musl", "musl-gcc -O1 -o hash-musl hash.c && ./hash-musl"),
    ("static", "gcc -O1 -static -o hash-static hash.c && ./hash-static"),
    ("cgo", "GOFLAGS=-mod=mod GOCACHE=$PWD/gc go build -o cgo cgo.go && ./cgo"),
    ("other users", "$SCRIPTS/users.sh"),
    ("postgres", "$SCRIPTS/postgres.sh"),
    ("mariadb", "$SCRIPTS/mariadb.sh"),
    ("redis", "$SCRIPTS/redis.sh"),
    ("memcached", "$SCRIPTS/memcached.sh"),
    ("40 x true", "for i in $(seq 40); do /bin/true || exit; done; echo ok"),
)  # fmt: skip
SCRIPTS = Path(__file__).parents[1] / "experiments" / "programs"
# What a command needs beside its first word, or in place of it.
NEEDS = {
    "convert": "/usr/bin/convert",
    "musl": "musl-gcc",
    "other users": "runuser",
    "postgres": "pg_lsclusters",
    "mariadb": "mariadbd",
    "redis": "redis-server",
    "memcached": "memcached",
    "40 x true": "true",
}


@dataclass(frozen=True)
class Run:
    """How a command ended."""

    status: int
    digest: str
    peak_mib: int
    seconds: float
    errors: str


@dataclass(frozen=True)
class Row:
    """A program in the table."""

    name: str
    command: str
    plain: Run
    dram_mib: int
    paged: Run
    faults: int

    def verdict(self) -> str:
        """Say how it went, with the pager's own line where that said something."""
        said = [line for line in self.paged.errors.splitlines() if "demeter extmem: " in line]
        line = next((line for line in said if "error:" in line or "without the pager" in line), "")
        line = line.partition("demeter extmem: ")[2]
        if self.plain.status != 0:
            return f"not compared: by itself it ended with status {self.plain.status}"
        if (self.paged.status, self.paged.digest) == (self.plain.status, self.plain.digest):
            return f"same; {line}" if line else "same"
        if line:
            return f"refused: {line}"
        if self.paged.status == -signal.SIGKILL:
            return f"not done after {LIMIT_S} s"
        if self.paged.status != self.plain.status:
            last = (self.paged.errors.strip().splitlines() or ["no message"])[-1]
            return f"status {self.paged.status} for {self.plain.status}: {last[:120]}"
        return "**other output**"


def run(command: list[str], folder: Path) -> Run:
    """Run a command to its end, or kill it."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        peak = folder / "peak-kib"
        peak.unlink(missing_ok=True)
        process = subprocess.Popen(
            ["python3", "-I", "-S", "-c", WITNESS, str(peak), *command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
            env={
                "RUSTUP_HOME": str(Path.home() / ".rustup"),
                **os.environ,
                "LC_ALL": "C",
                "HOME": str(folder),
                "SCRIPTS": str(SCRIPTS),
            },
        )
        signal.signal(signal.SIGALRM, lambda *_: os.killpg(process.pid, signal.SIGKILL))
        signal.alarm(LIMIT_S)
        status = process.wait()
        signal.alarm(0)
        out.seek(0)
        digest = hashlib.sha256()
        while chunk := out.read(MIB):
            digest.update(chunk)
        errors.seek(0)
        return Run(
            status,
            digest.hexdigest(),
            int(peak.read_text()) // 1024 if peak.exists() else 0,
            time.monotonic() - began,
            errors.read().decode(errors="replace"),
        )


def measure(name: str, command: str, demeter: Path, swap: Path, folder: Path) -> Row:
    """Run one program both ways."""
    plain = run(["bash", "-c", command], folder)
    dram_mib = max(LEAST_DRAM_MIB, plain.peak_mib // 2)
    summary = folder / "summary.json"
    summary.unlink(missing_ok=True)
    managed = [str(demeter), "extmem", "run", "--dram", f"{dram_mib}M", "--swap", str(swap)]
    managed += ["--swap-size", "2G", "--json", str(summary), "--", "bash", "-c", command]
    paged = run(managed, folder)
    faults = 0
    if summary.exists():
        for process in json.loads(summary.read_text())["processes"]:
            counters = process["counters"]
            faults += counters["faults_swap"] + counters["faults_compressed"]
            faults += counters["prefetch_issued_pages"]
    return Row(name, command, plain, dram_mib, paged, faults)


def is_there(name: str, command: str) -> bool:
    """Say whether the machine has what a row needs."""
    if name in NEEDS:
        return shutil.which(NEEDS[name]) is not None
    words = [word for word in command.split() if "=" not in word.split("/")[0]]
    return shutil.which(words[0]) is not None or words[0] in ("printf", "echo")


def table(rows: list[Row], missing: list[str]) -> str:
    """Return the table in Markdown."""
    left = len(PROGRAMS) - len(rows) - len(missing)
    same = sum(row.verdict().startswith("same") for row in rows)
    paged = sum(row.faults > 0 for row in rows)
    lines = [
        f"{len(rows)} programs (of the list {left} are left out): {same} ended as "
        "they do by themselves and wrote the same bytes; "
        f"pages came back to {paged} of them while they ran.",
        "",
        "| program | took, MiB | `--dram`, MiB | pages brought back | s, plain | s | result |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.name} | {row.plain.peak_mib} | {row.dram_mib} | {row.faults} | "
        f"{row.plain.seconds:.1f} | {row.paged.seconds:.1f} | {row.verdict().replace('|', '/')} |"
        for row in rows
    ]
    if missing:
        lines += ["", f"Not on the machine: {', '.join(missing)}."]
    return "\n".join(lines)


def measure_all(demeter: Path, swap: Path, only: set[str], out: Path) -> str:
    """Run all programs that the machine has; the table is written as it grows."""
    out.parent.mkdir(parents=True, exist_ok=True)
    swap.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=swap, prefix="programs-") as name:
        folder = Path(name)
        subprocess.run(["python3", "-c", DATA], cwd=folder, check=True)
        rows, missing = [], []
        for program, command in PROGRAMS:
            if only and program not in only:
                continue
            if not is_there(program, command):
                missing.append(program)
                continue
            rows.append(measure(program, command, demeter.absolute(), swap.absolute(), folder))
            row = rows[-1]
            out.write_text(table(rows, missing) + "\n")
            print(f"{program}: {row.verdict()} ({row.paged.seconds:.1f} s)", flush=True)
        return table(rows, missing)
