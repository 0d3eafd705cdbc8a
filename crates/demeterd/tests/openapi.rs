// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is under `/v1` stays there: `openapi-v1.json` is the description as it was promised, and
//! whatever it has the one of today has, too. It is changed only by additions, once these are
//! promised as well. That the daemon does as its description says is the suite `api`'s.

use serde_json::{Value, json};

const PROMISED: &str = include_str!("openapi-v1.json");
const NOW: &str = include_str!("../src/openapi.json");
/// For people, who may be told it in other words.
const WORDS: [&str; 3] = ["description", "summary", "title"];

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Places of what `now` has no more, or has otherwise.
fn vanished(promised: &Value, now: &Value, at: &str) -> Vec<String> {
    match (promised, now) {
        (Value::Object(promised), Value::Object(now)) => (promised.iter())
            .filter(|(key, value)| !(WORDS.contains(&key.as_str()) && value.is_string()))
            .flat_map(|(key, value)| {
                let at = format!("{at} {key}");
                let there = now.get(key).map(|now| vanished(value, now, &at));
                there.unwrap_or_else(|| vec![at])
            })
            .collect(),
        (Value::Array(promised), Value::Array(now)) => (promised.iter())
            .filter(|value| !now.iter().any(|now| vanished(value, now, at).is_empty()))
            .map(|value| format!("{at} {value}"))
            .collect(),
        _ if promised == now => Vec::new(),
        _ => vec![format!("{at}: {promised} is {now}")],
    }
}

/// Names of schemas that a part of a description goes by, with those that they go by.
fn schemas(part: &Value, whole: &Value, found: &mut Vec<String>) {
    match part {
        Value::Object(entries) => {
            let name = (entries.get("$ref").and_then(Value::as_str))
                .and_then(|path| path.strip_prefix("#/components/schemas/"));
            if let Some(name) = name.filter(|name| !found.iter().any(|other| other == name)) {
                found.push(name.to_owned());
                schemas(&whole["components"]["schemas"][name], whole, found);
            }
            entries
                .values()
                .for_each(|entry| schemas(entry, whole, found));
        }
        Value::Array(entries) => entries
            .iter()
            .for_each(|entry| schemas(entry, whole, found)),
        _ => {}
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Calls of a description: path, method or `parameters`, and what there is of it.
fn calls(whole: &Value) -> impl Iterator<Item = (&String, &String, &Value)> {
    let paths = whole["paths"].as_object().unwrap().iter();
    paths.flat_map(|(path, calls)| {
        let calls = calls.as_object().unwrap().iter();
        calls.map(move |(method, call)| (path, method, call))
    })
}

/// What has to be said today, and had not to be said.
fn demanded(promised: &Value, now: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut bodies = Vec::new();
    for (path, method, call) in calls(promised) {
        schemas(&call["requestBody"], promised, &mut bodies);
        let now = &now["paths"][path][method];
        let parameters = |call: &Value| -> Vec<Value> {
            let own = if method == "parameters" {
                call
            } else {
                &call["parameters"]
            };
            let required = list(own).iter().filter(|own| own["required"] == true);
            required.map(|own| own["name"].clone()).collect()
        };
        let before = parameters(call);
        let more = parameters(now)
            .into_iter()
            .filter(|name| !before.contains(name));
        found.extend(more.map(|name| format!("{path} {method} {name}")));
        if now["requestBody"]["required"] == true && call["requestBody"]["required"] != true {
            found.push(format!("{path} {method} a body"));
        }
    }
    for name in bodies {
        let required =
            |whole: &Value| list(&whole["components"]["schemas"][&name]["required"]).to_vec();
        let before = required(promised);
        let more = required(now)
            .into_iter()
            .filter(|field| !before.contains(field));
        found.extend(more.map(|field| format!("{name} {field}")));
    }
    found
}

fn broken(promised: &Value, now: &Value) -> Vec<String> {
    let mut broken = vanished(promised, now, "");
    broken.extend(demanded(promised, now));
    broken
}

#[test]
fn nothing_that_was_promised_has_vanished() {
    let broken = broken(&parsed(PROMISED), &parsed(NOW));
    assert!(broken.is_empty(), "/v1 stays as it is: {broken:#?}");
}

/// Pointers to all entries of objects in a part, itself left out.
fn pointers(part: &Value, at: &str, found: &mut Vec<String>) {
    if let Value::Object(entries) = part {
        for (key, entry) in entries {
            let at = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
            pointers(entry, &at, found);
            found.push(at);
        }
    }
}

#[test]
fn whatever_vanishes_is_told() {
    let promised = parsed(PROMISED);
    assert!(broken(&promised, &promised).is_empty());
    let mut all = Vec::new();
    pointers(&promised, "", &mut all);
    let (mut answers, mut fields, mut paths) = (0, 0, 0);
    for pointer in &all {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let mut now = promised.clone();
        let entries = now.pointer_mut(parent).and_then(Value::as_object_mut);
        let key = key.replace("~1", "/").replace("~0", "~");
        let gone = entries.unwrap().remove(&key).unwrap();
        let is_words = WORDS.contains(&key.as_str()) && gone.is_string();
        assert_eq!(broken(&promised, &now).is_empty(), is_words, "{pointer}");
        answers += usize::from(parent.ends_with("/responses"));
        fields += usize::from(parent.ends_with("/properties"));
        paths += usize::from(parent == "/paths");
    }
    assert!(
        paths > 10 && answers > 50 && fields > 100,
        "{paths} {answers} {fields}"
    );
}

#[test]
fn additions_are_none_unless_one_has_to_say_more() {
    let promised = parsed(PROMISED);
    let mut now = promised.clone();
    now["paths"]["/v1/more"] = json!({"get": {"responses": {}}});
    now["paths"]["/v1/vms"]["get"]["responses"]["503"] = json!({"description": "not now"});
    now["components"]["schemas"]["Vm"]["properties"]["more"] = json!({"type": "string"});
    let push = |list: &mut Value, value: Value| list.as_array_mut().unwrap().push(value);
    let schemas = &mut now["components"]["schemas"];
    push(&mut schemas["Why"]["enum"], "more".into());
    push(&mut schemas["Vm"]["required"], "more".into());
    schemas["SizeWish"]["properties"]["more"] = json!({"type": "string"});
    assert_eq!(broken(&promised, &now), [""; 0]);
    push(
        &mut now["components"]["schemas"]["SizeWish"]["required"],
        "more".into(),
    );
    assert_eq!(broken(&promised, &now), ["SizeWish \"more\""]);
    let mut now = promised.clone();
    let parameters = &mut now["paths"]["/v1/vms/{vm}/history"]["parameters"];
    push(
        parameters,
        json!({"name": "more", "in": "query", "required": true}),
    );
    let told = broken(&promised, &now);
    assert_eq!(told, ["/v1/vms/{vm}/history parameters \"more\""]);
    // A value that is another kind of thing, or is not said any more.
    let mut now = promised.clone();
    now["components"]["schemas"]["Tier"]["properties"]["node"]["type"] = "string".into();
    assert_eq!(broken(&promised, &now).len(), 1);
    let mut now = promised.clone();
    let stages = now["components"]["schemas"]["Stage"]["enum"].as_array_mut();
    stages.unwrap().retain(|stage| stage != "driven");
    assert_eq!(broken(&promised, &now).len(), 1);
}
